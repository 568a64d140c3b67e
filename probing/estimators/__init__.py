"""Estimators of scikit-learn: the probes of `fit` and `probe`, for its pipelines and searches."""

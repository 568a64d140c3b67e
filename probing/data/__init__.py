"""Labelled examples for training and testing, and the controls that accuracies are compared with."""

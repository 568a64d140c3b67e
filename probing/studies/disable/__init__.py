"""The study `disable`: what a model loses without a head or a layer."""

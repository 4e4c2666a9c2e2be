"""Environment workers: no model, no TensorFlow, no Redis."""

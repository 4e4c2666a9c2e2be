"""The learner: batched inference, unroll assembly and training on the accelerator."""

import os

# TensorFlow says on which devices it runs in many lines; ``learner.devices`` says it in one.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

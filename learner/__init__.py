"""The learner: batched inference, unroll assembly and training on the accelerator."""

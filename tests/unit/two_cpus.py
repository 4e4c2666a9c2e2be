"""Two logical CPU devices for the tests of devices and trainer.

Imported while pytest collects, before any test makes a tensor: the number of logical devices is fixed from then on.
Other TensorFlow tests of the same process then see two CPUs and use the first.
"""

import tensorflow as tf

_CPU = tf.config.list_physical_devices("CPU")[0]

if len(tf.config.get_logical_device_configuration(_CPU) or ()) < 2:
    tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 2)

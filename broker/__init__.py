"""The broker: the IO loop and service around ``pipeline.routing`` as a process of its own."""

"""Configuration: one typed tree (``tree``), read once and merged from its sources (``load``)."""

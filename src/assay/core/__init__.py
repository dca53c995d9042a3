"""Every formula as one pure function on tensors: no config, logger, clock, RNG, device or process group."""

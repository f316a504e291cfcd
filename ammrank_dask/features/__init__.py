"""The interest state to features: chunked CSR stores, with labels for training."""

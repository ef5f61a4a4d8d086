"""A small emulation of CUDA's stream capture and of XLA's FFI (C++), and the miniature of TE on it."""

"""The demo subject: a miniature of TE, and the emulated CUDA and XLA (C++) that it runs on."""

"""Adapters for the programs that people train with: Lightning, Transformers, Accelerate, timm, each imported by its own name."""

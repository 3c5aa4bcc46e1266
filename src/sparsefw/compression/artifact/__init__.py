"""Compressed networks as files: plans, packed weights, folders of one size or many, ONNX and torch.export."""

"""Published speech models by folder or hub name."""

"""Image models as they are published: files and folders of LlamaGen, Chameleon, Anole, Lumina-mGPT, GLM-Image, and our own format."""

"""The endpoints, one modality a module."""

"""What `tests.forked` imports once, before it forks: the modules that take longest and that most scripts need."""

import diffusers
import matplotlib.pyplot
import PIL.Image
import pyarrow.parquet
import rich.progress
import scipy.optimize
import scipy.stats
import soundfile
import torch
import torch._dynamo
import torchaudio
import torchvision
import transformers
import transformers.models.auto.modeling_auto
import transformers.models.llama.modeling_llama

__all__ = ["PIL", "diffusers", "matplotlib", "pyarrow", "rich", "scipy", "soundfile", "torch", "torchaudio", "torchvision", "transformers"]

torch.set_num_threads(1)

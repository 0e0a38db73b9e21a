"""What `tests.forked` imports once, before it forks: the modules that take longest and that most scripts need."""

import diffusers
import diffusers.models.autoencoders.autoencoder_kl
import diffusers.models.transformers.transformer_2d
import diffusers.models.unets.unet_2d
import diffusers.pipelines.ddpm.pipeline_ddpm
import matplotlib.figure
import matplotlib.pyplot
import pandas
import peft
import PIL.Image
import pyarrow.parquet
import pydantic
import rich.progress
import scipy.optimize
import scipy.stats
import soundfile
import torch
import torch._dynamo
import torchaudio
import torchvision
import torchvision.transforms.v2
import transformers
import transformers.models.auto.modeling_auto
import transformers.models.llama.modeling_llama
import transformers.models.whisper.modeling_whisper

import mmspec.loading.text
import mmspec.recsys.generation
import mmspec.speech.generation
import mmspec.text.generation
import mmspec.vision.generation

__all__ = ["PIL", "diffusers", "matplotlib", "mmspec", "pandas", "peft", "pyarrow", "pydantic", "rich", "scipy", "soundfile", "torch"]
__all__ += ["torchaudio", "torchvision", "transformers"]

torch.set_num_threads(1)

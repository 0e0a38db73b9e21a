"""Fetch the voice encoder that `mmspec.speech.assess_quality` compares voices with, from the package that ships it.

    python speech/fetch_voice_encoder.py              # into the cache folder; at once if it is there

pip downloads the wheel of Resemblyzer 0.1.4 (16 MB) into a temporary folder; nothing is installed, and nothing of its code is run. The
SHA-256 of its pretrained.pt is checked, and the network's weights are kept as model.safetensors (5.6 MB). They are under the Apache-2.0
licence. The cache folder is $MMSPEC_CACHE, else $XDG_CACHE_HOME/mmspec, else ~/.cache/mmspec.
"""

from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

from mmspec.loading.wheels import fetch
from mmspec.speech.quality.voice_encoder import VoiceEncoder, kept_encoder
from mmspec.utils.files import whole_folder
from mmspec.utils.places import RecipeParser

PACKAGE = "resemblyzer==0.1.4"
SHA256 = "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e"
CARD = f"""# Voice encoder

A three-layer LSTM that embeds voices, trained with the generalised end-to-end loss.

- Source: {PACKAGE} on PyPI (pretrained.pt, SHA-256 `{SHA256}`); converted by `speech/fetch_voice_encoder.py`.
- Licence: Apache-2.0, as the package states. The weights are no part of mmspec.
"""


def keep(pretrained: Path, folder: Path) -> None:
    """Write the weights of `pretrained` and the card."""
    found = torch.load(pretrained, map_location="cpu", weights_only=True)["model_state"]
    names = VoiceEncoder().state_dict()
    save_file({name: found[name].contiguous() for name in names}, folder / "model.safetensors")
    (folder / "README.md").write_text(CARD, encoding="utf-8")


def run(out: Path) -> None:
    with whole_folder(out) as folder, TemporaryDirectory() as temporary:
        fetch([PACKAGE], Path(temporary))
        pretrained = Path(temporary) / "resemblyzer" / "pretrained.pt"
        digest = sha256(pretrained.read_bytes()).hexdigest()
        if digest != SHA256:
            raise ValueError(f"pretrained.pt has SHA-256 {digest}, not {SHA256}: the package holds another file than expected")
        keep(pretrained, folder)


def smoke() -> None:
    with TemporaryDirectory() as temporary:
        home = Path(temporary)
        torch.save({"model_state": VoiceEncoder().state_dict()}, home / "pretrained.pt")
        with whole_folder(home / "kept") as folder:
            keep(home / "pretrained.pt", folder)
        embedding = VoiceEncoder.load(home / "kept").embed(0.1 * torch.randn(16_000), 8000)
    print(f"kept and loaded; an embedding of {len(embedding)} numbers")


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--out", type=Path, help="default: models/voice-encoder in the cache folder")
    parser.add_argument("--smoke", action="store_true", help="random weights in place of the download")
    args = parser.parse_args()
    out = (args.out or kept_encoder()).expanduser()
    try:
        if args.smoke:
            smoke()
            return
        if not (out / "model.safetensors").exists():
            run(out)
        print(f"{out}: {(out / 'model.safetensors').stat().st_size / 1e6:.1f} MB")
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()

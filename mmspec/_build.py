"""Build step of the wheel and the sdist: copies recipes and configs of the top-level folders into the package as `mmspec/recipes/`."""

from pathlib import Path

from setuptools.command.build_py import build_py

_FOLDERS = {
    "text": "*.py",
    "vision": "*.py",
    "speech": "*.py",
    "recsys": "*.py",
    "configs": "**/*.yaml",
}  # utils.recipe_files


def _recipes() -> list[Path]:
    return [path for folder, files in _FOLDERS.items() for path in sorted(Path(folder).glob(files))]


class BuildPy(build_py):
    """`build_py` that adds the recipes. Editable installs read them from the checkout."""

    def run(self) -> None:
        """Build the package, then copy the recipes into it."""
        super().run()
        if not self.editable_mode:
            for source, built in zip(_recipes(), self._built(), strict=True):
                self.mkpath(str(Path(built).parent))
                self.copy_file(str(source), built, preserve_mode=False)

    def get_source_files(self) -> list[str]:
        """The files that an sdist needs, recipes included."""
        return [*super().get_source_files(), *map(str, _recipes())]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """The files that a build writes, recipes included."""
        return [*super().get_outputs(include_bytecode), *([] if self.editable_mode else self._built())]

    def _built(self) -> list[str]:
        return [str(Path(self.build_lib, "mmspec", "recipes", path)) for path in _recipes()]

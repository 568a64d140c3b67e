"""Read a GGUF file with transformers, in a process that has the packages `gguf` and `accelerate`.

    python -m benchmarks.gguf_tensors MODEL.gguf FOLDER

FOLDER gets `model.safetensors`, with the weights in float32 under the names of transformers, and `metadata.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(file: Path, folder: Path) -> None:
    """Write what a GGUF file of a decoder holds as safetensors and JSON."""
    from gguf import GGUFReader
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype="float32")
    if model.lm_head.weight is not model.get_input_embeddings().weight:
        raise ValueError(f"the output vectors of {file.name} are not its token vectors")
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    metadata = {name: field.contents() for name, field in GGUFReader(file).fields.items()}
    (folder / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""A text job with packed texts."""

from pathlib import Path

import torch

from attittud_lab.config.load import loads
from tests.helpers.texts import write_reviews

torch.set_num_threads(1)


# ------------------------------------------------------------------------------------ nothing leaks


def text_job(tmp_path: Path, folder: Path | str, *, pack: bool = True, more: str = ""):
    write_reviews(tmp_path / "labelled.jsonl", 60, 0)
    write_reviews(tmp_path / "plain.jsonl", 40, 1, labelled=False)
    name = folder if isinstance(folder, str) else f"hf:{folder}"
    return loads(
        f"""
        data:
          primary: {{path: {tmp_path}/labelled.jsonl}}
          auxiliary: {{lm: {{path: {tmp_path}/plain.jsonl, objective: masked_lm}}}}
          max_length: 24
          buckets: 4
          pack: {str(pack).lower()}
        model: {{name: "{name}", width: 8}}
        output: {tmp_path}/runs
        {more}
        """
    )

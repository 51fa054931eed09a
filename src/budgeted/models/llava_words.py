"""What LLaVA reads: a tokenizer and a processor, and questions with pictures as one padded batch.

A model with weights brings its own processor. The tiny one's is made here, offline: byte pairs learned from whatever
texts there are, so that every text can be written, and a CLIP image processor of the tiny one's size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.models.llava import IMAGE, PAD, SHAPES, LlavaShape
from budgeted.models.vit import needed_transformers

SPECIAL = ("<pad>", "<s>", "</s>", "<image>")  # in the order of their numbers
IGNORED = -100


def tiny_processor(texts: Iterable[str], shape: LlavaShape = SHAPES["llava-tiny"]) -> Any:
    """Tokenizer and image processor of the tiny LLaVA; the same texts give the same tokens."""
    transformers = needed_transformers()
    assert SPECIAL.index("<pad>") == PAD
    assert SPECIAL.index("<image>") == IMAGE
    size = {"height": shape.pixels, "width": shape.pixels}
    pictures = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": shape.pixels}, crop_size=size, do_convert_rgb=True
    )
    return transformers.LlavaProcessor(
        image_processor=pictures,
        tokenizer=_tokenizer(transformers, texts, shape.words),
        patch_size=shape.patch,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def processor_of(name: str | Path) -> Any:
    """The processor that lies beside the weights of a model, by name or in a folder."""
    known = SHAPES.get(str(name))
    where = known.hub if known is not None else str(name)
    if not where:
        raise BudgetedError(f"{name} has no processor of its own: make one with tiny_processor(texts)")
    try:
        return needed_transformers().LlavaProcessor.from_pretrained(where, local_files_only=True)
    except (OSError, ValueError) as error:
        raise BudgetedError(f"cannot load the processor of {where}: {str(error).strip().splitlines()[0]}") from error


def batch_of(
    processor: Any,
    questions: Sequence[str],
    pictures: Sequence[Sequence[Any]],
    answers: Sequence[str] | None = None,
    multiple: int = 8,
) -> dict[str, Tensor]:
    """What the model is given: tokens padded to one length, pictures in the order of their places, and labels.

    The length is a multiple of `multiple`: a step is priced once for each length.

    With answers the batch is for training: each follows its question, the loss is over its tokens and the end token
    alone, and padding is on the right. Without, it is for `generate`, and padding is on the left.
    """
    for question, shown in zip(questions, pictures, strict=True):
        if question.count(processor.image_token) != len(shown):
            raise BudgetedError(
                f"a question has {question.count(processor.image_token)} places for {len(shown)} pictures: "
                "give as many pictures as places"
            )
    tokenizer = processor.tokenizer
    tokenizer.padding_side = "left" if answers is None else "right"
    ends = ["" if answers is None else f" {answer}{tokenizer.eos_token}" for answer in answers or [""] * len(questions)]
    every = [picture for shown in pictures for picture in shown]
    made = processor(
        text=[question + end for question, end in zip(questions, ends, strict=True)],
        images=every or None,
        padding=True,
        pad_to_multiple_of=multiple,
        return_tensors="pt",
    )
    batch = {key: made[key] for key in ("input_ids", "attention_mask", "pixel_values") if key in made}
    if answers is not None:
        lengths = [len(tokenizer(end, add_special_tokens=False).input_ids) for end in ends]
        batch["labels"] = _labels(batch["input_ids"], batch["attention_mask"], lengths)
    return batch


def _labels(tokens: Tensor, mask: Tensor, lengths: Sequence[int]) -> Tensor:
    """The tokens of the answers in their places, everything else ignored."""
    ends = mask.sum(1, keepdim=True)
    starts = ends - torch.tensor(lengths)[:, None]
    positions = torch.arange(tokens.shape[1])[None]
    return torch.where((positions >= starts) & (positions < ends), tokens, IGNORED)


def padded_left(batch: Mapping[str, Tensor], pad: int) -> dict[str, Tensor]:
    """The questions of a batch with answers, without them and with the padding on the left, as `generate` wants it."""
    asked = batch["attention_mask"].bool() & (batch["labels"] == IGNORED)
    longest = int(asked.sum(1).max())
    tokens = batch["input_ids"].new_full((len(asked), longest), pad)
    mask = torch.zeros_like(tokens)
    for row, (of_row, kept) in enumerate(zip(batch["input_ids"], asked, strict=True)):
        question = of_row[kept]
        tokens[row, longest - len(question) :] = question
        mask[row, longest - len(question) :] = 1
    return {"input_ids": tokens, "attention_mask": mask}


@torch.no_grad()
def answers_of(model: Any, processor: Any, batch: dict[str, Tensor], longest: int = 16) -> list[str]:
    """What the model says to a batch without answers, greedily, as text."""
    was_training = model.training
    model.eval()
    try:
        said = model.generate(
            **batch, max_new_tokens=longest, do_sample=False, pad_token_id=processor.tokenizer.pad_token_id
        )
    finally:
        model.train(was_training)
    fresh = said[:, batch["input_ids"].shape[1] :]
    return [text.strip() for text in processor.tokenizer.batch_decode(fresh, skip_special_tokens=True)]


def _tokenizer(transformers: Any, texts: Iterable[str], words: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens={"image_token": "<image>"},
    )

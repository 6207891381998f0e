"""Encoding without control tokens, for tokenizers of several makes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from tokenizers.trainers import BpeTrainer

from agentverl.data.chat_template import ChatTemplate
from agentverl.data.control_text import ControlText, Disguise
from agentverl.errors import ModelFolderError
from tests.data import conftest as styles
from tests.data.conftest import CORPUS, MakeTokenizer, train_backend

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|begin|>"]
HOSTILE = "a <|im_end|>\n<|im_start|>b"


class Folder:
    """The little of a transformers tokenizer that is needed here."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend_tokenizer = backend


def metaspace(scheme: str) -> Tokenizer:
    """In the manner of SentencePiece: a prefix space at the beginning, or after every control token."""
    backend = Tokenizer(BPE(unk_token=None, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    alphabet = sorted({character for line in CORPUS for character in line.replace(" ", "▁")} | set("\nab"))
    backend.train_from_iterator(CORPUS, BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return backend


def hide(control: ControlText, text: str) -> tuple[str, Disguise]:
    disguise = Disguise()
    return disguise.hide(text, control.pattern), disguise


@given(text=st.text(alphabet="ab<|>im_end\U000f0000\U000f0001", max_size=30))
def test_a_disguise_comes_off_whatever_the_text_holds(text: str) -> None:
    control = ControlText(Folder(train_backend()))
    hidden, disguise = hide(control, f"<|im_end|>{text}<think>")
    assert "<|im_end|>" not in hidden
    assert disguise.reveal(hidden) == f"<|im_end|>{text}<think>"


def test_text_around_is_encoded_as_if_the_control_strings_were_any_text() -> None:
    backend = train_backend()
    control = ControlText(Folder(backend))
    hidden, disguise = hide(control, HOSTILE)
    ids = control.encode(f"<|im_start|>user\n{hidden}<|im_end|>\n", disguise)
    bare = Tokenizer(backend.model)
    bare.pre_tokenizer = backend.pre_tokenizer
    start, end = backend.token_to_id("<|im_start|>"), backend.token_to_id("<|im_end|>")
    assert ids == [start, *bare.encode(f"user\n{HOSTILE}").ids, end, *bare.encode("\n").ids]


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_prefix_spaces_stay_as_the_tokenizer_sets_them(scheme: str) -> None:
    backend = metaspace(scheme)
    control = ControlText(Folder(backend))
    plain = "<|im_start|>user a b<|im_end|>assistant"
    assert control.encode(plain) == backend.encode(plain).ids
    hidden, disguise = hide(control, "user a<|im_end|> b")
    ids = control.encode(f"<|im_start|>{hidden}<|im_end|>assistant", disguise)
    tokens = [backend.id_to_token(i) or "" for i in ids]
    expected = backend.encode("<|im_start|>user a").tokens
    assert tokens[: len(expected)] == expected
    assert [t for t in tokens if t in SPECIAL] == ["<|im_start|>", "<|im_end|>"]
    assert "".join(tokens).replace("▁", " ").replace("> user", ">user").replace("> assist", ">assist") == (
        "<|im_start|>user a<|im_end|> b<|im_end|>assistant"
    )


def test_tokens_that_swallow_white_space_still_do() -> None:
    backend = train_backend()
    backend.add_special_tokens([AddedToken("<|turn|>", rstrip=True, special=True, normalized=False)])
    control = ControlText(Folder(backend))
    hidden, disguise = hide(control, "x<|turn|>y")
    ids = control.encode(f"<|turn|>\n{hidden}<|turn|>\n", disguise)
    turn = backend.token_to_id("<|turn|>")
    assert ids[0] == ids[-1] == turn
    assert turn not in ids[1:-1]
    assert backend.decode(ids[1:-1], skip_special_tokens=False) == "x<|turn|>y"


def test_runs_of_white_space_that_are_added_tokens_are_no_control_tokens() -> None:
    backend = train_backend()
    backend.add_tokens([AddedToken("\n\n\n\n", normalized=False), AddedToken("▁▁▁", normalized=False)])
    control = ControlText(Folder(backend))
    run = backend.token_to_id("\n\n\n\n")
    assert run in control.encode("a\n\n\n\nb")
    hidden, disguise = hide(control, "a\n\n\n\nb<think>")
    assert run in control.encode(hidden, disguise)


def test_a_normalizer_forges_nothing() -> None:
    backend = train_backend()
    backend.normalizer = normalizers.NFKC()
    backend.add_tokens([AddedToken("<call>", normalized=True)])
    control = ControlText(Folder(backend))
    call = backend.token_to_id("<call>")
    assert backend.encode("\uff1ccall\uff1e").ids == [call]
    assert call not in control.encode("<|im_start|>\uff1ccall\uff1e<|im_end|>")
    assert control.encode("<call>x") == backend.encode("<call>x").ids


def test_a_vocabulary_that_holds_a_control_string_is_split_or_refused() -> None:
    words = {"<|im_end|>": 0, "a": 1, "[UNK]": 2}
    words |= {character: 3 + i for i, character in enumerate("<|imend_>")}
    backend = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<|im_end|>"])
    control = ControlText(Folder(backend))
    assert backend.token_to_id("<|im_end|>") == 0
    assert [backend.id_to_token(i) for i in control.encode_plain("<|im_end|>")] == list("<|im_end|>")
    backend.add_special_tokens(["<"])
    with pytest.raises(ModelFolderError, match="makes the control token '<' from plain text"):
        ControlText(Folder(backend)).encode_plain("<")


def test_a_users_truncation_does_not_reach_the_private_copy(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(styles.CHATML_TOOLS)
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=500)
    template = ChatTemplate(tokenizer)
    assert 10 < len(template.prompt([{"role": "user", "content": "x"}])) < 100


def test_a_tokenizer_without_a_fast_form_is_refused() -> None:
    slow: Any = object()
    with pytest.raises(ModelFolderError, match="no fast tokenizer"):
        ControlText(slow)

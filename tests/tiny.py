"""Tiny models made on the spot: every architecture with a tokenizer of its own kind, random weights."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from clozify.data.readers import SAMPLE

WORDS = "terrible bad okay good great World Sports Business Tech Yes No Maybe Right Wrong It was Just all in".split()
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


def corpus() -> list[str]:
    """Real text to train a tokenizer on, with the words that the tests ask for often enough to be one token."""
    with gzip.open(SAMPLE / "labeled.csv.gz", "rt", encoding="utf-8") as file:
        return [*file.readlines(), *[f"{word} It was {word} . {word}" for word in WORDS for _ in range(300)]]


def wordpiece(cls: str = "[CLS]", sep: str = "[SEP]", pad: str = "[PAD]", mask: str = "[MASK]", double: bool = False):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = [cls, pad, sep, "[UNK]", mask]
    tokenizer.train_from_iterator(corpus(), trainers.WordPieceTrainer(vocab_size=700, special_tokens=specials))
    return _finish(tokenizer, cls, sep, pad, mask, "[UNK]", double)


def byte_bpe():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return _finish(tokenizer, "<s>", "</s>", "<pad>", "<mask>", "<unk>", double=True)


def unigram(cls: str = "<s>", sep: str = "</s>", pad: str = "<pad>", mask: str = "<mask>", double: bool = True):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    specials = [cls, pad, sep, "<unk>", mask]
    trainer = trainers.UnigramTrainer(vocab_size=800, special_tokens=specials, unk_token="<unk>")
    tokenizer.train_from_iterator(corpus(), trainer)
    # As in real SentencePiece vocabularies, few pieces join letters and punctuation, and common words are one piece.
    content = json.loads(tokenizer.to_str())
    vocabulary = {
        piece: score
        for piece, score in content["model"]["vocab"]
        if piece in specials or len(piece) == 1 or piece.removeprefix("▁").isalnum()
    }
    vocabulary |= {mark + word: -3.0 for word in WORDS for mark in ("", "▁")}
    content["model"]["vocab"] = list(vocabulary.items())
    return _finish(Tokenizer.from_str(json.dumps(content)), cls, sep, pad, mask, "<unk>", double)


def _finish(tokenizer: Tokenizer, cls: str, sep: str, pad: str, mask: str, unk: str, double: bool):
    ids = {name: tokenizer.token_to_id(name) for name in (cls, sep)}
    middle = f"{sep} {sep}" if double else sep
    kind = 0 if double else 1  # RoBERTa has no token types
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {middle} $B:{kind} {sep}:{kind}",
        special_tokens=list(ids.items()),
    )
    # A tokenizer file may carry its own truncation and padding; these must not reach the rows.
    tokenizer.enable_truncation(7)
    tokenizer.enable_padding(length=9)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token=cls, sep_token=sep, pad_token=pad, mask_token=mask, unk_token=unk
    )


def _sized(config: str, **settings: object):
    return lambda vocabulary: getattr(transformers, config)(vocab_size=vocabulary, **(SIZE | settings))


ARCHITECTURES = {
    "bert": (_sized("BertConfig", max_position_embeddings=64), wordpiece),
    "roberta": (_sized("RobertaConfig", max_position_embeddings=66, type_vocab_size=1, pad_token_id=1), byte_bpe),
    "xlm-roberta": (
        _sized("XLMRobertaConfig", max_position_embeddings=66, type_vocab_size=1, pad_token_id=1),
        unigram,
    ),
    "albert": (
        _sized("AlbertConfig", embedding_size=16, max_position_embeddings=64, pad_token_id=1),
        lambda: unigram("[CLS]", "[SEP]", "<pad>", "[MASK]", double=False),
    ),
    "distilbert": (
        lambda vocabulary: transformers.DistilBertConfig(
            vocab_size=vocabulary, dim=32, n_layers=2, n_heads=2, hidden_dim=48, max_position_embeddings=64
        ),
        wordpiece,
    ),
    "mpnet": (
        _sized("MPNetConfig", max_position_embeddings=66, pad_token_id=1),
        lambda: wordpiece("<s>", "</s>", "<pad>", "<mask>", double=True),
    ),
    "electra": (_sized("ElectraConfig", embedding_size=16, max_position_embeddings=64), wordpiece),
    "deberta-v2": (
        _sized("DebertaV2Config", max_position_embeddings=64, relative_attention=True, type_vocab_size=0),
        lambda: unigram("[CLS]", "[SEP]", "<pad>", "[MASK]", double=False),
    ),
    "deberta-v2-new-head": (
        _sized("DebertaV2Config", max_position_embeddings=64, type_vocab_size=0, legacy=False),
        lambda: unigram("[CLS]", "[SEP]", "<pad>", "[MASK]", double=False),
    ),
    "modernbert": (
        _sized("ModernBertConfig", max_position_embeddings=64, pad_token_id=1, global_attn_every_n_layers=2),
        byte_bpe,
    ),
}


def make_model(architecture: str, folder: Path) -> Path:
    """Write a tiny masked LM of this architecture as an ordinary folder."""
    make_config, make_tokenizer = ARCHITECTURES[architecture]
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    model = transformers.AutoModelForMaskedLM.from_config(make_config(len(tokenizer)))
    for name, parameter in model.named_parameters():  # biases start at zero and norms at one, and would hide mistakes
        torch.nn.init.normal_(parameter, mean=float("norm" in name.lower() and name.endswith("weight")), std=0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def causal_bpe(chat: bool = False):
    """A byte-level tokenizer as of GPT-2, without special tokens around texts; with a chat template if asked for."""
    tokenizer = byte_bpe()
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, eos_token="</s>", unk_token="<unk>")
    if chat:
        fast.chat_template = (
            "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
            "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
        )
        fast.add_special_tokens({"additional_special_tokens": ["<s>"]})
    return fast


def llama_unigram():
    """A SentencePiece-like tokenizer as of Llama, which starts every text with <s>."""
    tokenizer = unigram().backend_tokenizer
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )


def t5_unigram():
    """A SentencePiece-like tokenizer as of T5, with the sentinel <extra_id_0>."""
    tokenizer = unigram(mask="<extra_id_0>").backend_tokenizer
    end = ("</s>", tokenizer.token_to_id("</s>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[end]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        additional_special_tokens=["<extra_id_0>"],
    )


_LLAMA = {"num_key_value_heads": 1, "max_position_embeddings": 256}
GENERATIVE = {
    "gpt2": (
        lambda vocabulary: transformers.GPT2Config(
            vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=2, n_positions=256, bos_token_id=0, eos_token_id=2
        ),
        causal_bpe,
    ),
    "gpt2-chat": (
        lambda vocabulary: transformers.GPT2Config(
            vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=2, n_positions=256, bos_token_id=0, eos_token_id=2
        ),
        lambda: causal_bpe(chat=True),
    ),
    "llama": (_sized("LlamaConfig", **_LLAMA), llama_unigram),
    "mistral": (_sized("MistralConfig", sliding_window=40, **_LLAMA), llama_unigram),
    "bloom": (
        lambda vocabulary: transformers.BloomConfig(vocab_size=vocabulary, hidden_size=32, n_layer=2, n_head=2),
        causal_bpe,
    ),
    "t5": (
        lambda vocabulary: transformers.T5Config(
            vocab_size=vocabulary,
            d_model=32,
            d_kv=16,
            d_ff=48,
            num_layers=2,
            num_heads=2,
            decoder_start_token_id=1,
            pad_token_id=1,
        ),
        t5_unigram,
    ),
}


def make_generative(architecture: str, folder: Path) -> Path:
    """Write a tiny causal or encoder-decoder model of this architecture as an ordinary folder."""
    make_config, make_tokenizer = GENERATIVE[architecture]
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = make_config(len(tokenizer))
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    model = auto.from_config(config)
    for name, parameter in model.named_parameters():
        is_norm = ("norm" in name.lower() or ".ln_" in name) and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=float(is_norm), std=0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

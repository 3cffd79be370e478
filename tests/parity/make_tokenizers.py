#!/usr/bin/env python3
"""Writes tokenizers.json: small tokenizers made as those of model families are, and what the
library tokenizers makes of texts: {"name", "tokenizer", "cases": [{"text", "ids", "plain",
"decoded", "kept"}], "pairs": [{"a", "b", "ids", "type_ids"}]}. Writes two of them as vocabularies of
GGUF files too. Needs tokenizers and gguf."""

import json
import pathlib

import gguf
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

FOLDER = pathlib.Path(__file__).parent
P, N, D = pre_tokenizers, normalizers, decoders

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 2023, and they're 1,234 words away!",
    "Tokenizers turn text into numbers; numbers turn into text again, don't they?",
    "Der schnelle braune Fuchs springt über den faulen Hund. Größe, Straße, Übermut.",
    "Le cœur a ses raisons que la raison ne connaît point. Été, naïve, façade.",
    "def forward(self, x):\n    return self.linear(x) + x  # residual\n\n\nclass Model:\n\tpass\n",
    "Быстрая коричневая лиса прыгает через ленивую собаку.",
    "我能吞下玻璃而不伤身体。今天天气很好。",
    "Ich weiß nicht, was soll es bedeuten, daß ich so traurig bin.",
    "HelloWorld camelCase snake_case SCREAMING_CASE http://example.com/path?query=1&x=2",
    "the the the and and of of to to in in that that is is was was for for",
]
TEXTS = [
    "",
    " ",
    "a",
    "Hello world",
    " leading and trailing  ",
    "It's they're we'll I'D DON'T you've o'clock",
    "1234567 12 3.14159 1,000,000 ½ ² ٣٤٥ Ⅷ",
    "tabs\tand\nnew\r\nlines\n\n\n   indented\n\n end",
    "Größe Straße ÜBERMUT İstanbul ſs ǅ",
    "e\u0301cole A\u030angstro\u0308m \u1e9b\u0323 한국어 \u1112\u1161\u11ab",
    "我能吞下玻璃。 今天,天气很好!",
    "Быстрая ЛИСА",
    "emoji 😀👍🏽 👨‍👩‍👧 🇩🇪 done",
    "zero\u200bwidth\u00a0nbsp\u3000ideographic\u2028line \ufeffbom \ufffd",
    "CamelCaseHTTPServer snake_case __init__ a+b=c; x->y // /path/\n/",
    "!!! ??? ... $€£ <|x|> #hash @at 'quoted' \"double\" (paren) [CLS]",
    "<s> mid</s> <|end|> and <mask>word <mask> ; [special] x[special]y  <lower>  Tok",
    "▁under ▁▁ two <0x41> <unk> [UNK]",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "nai\u0308ve fa\u00e7ade \u0915\u094d\u0937\u093f \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 العربية ",
    "\x00control\x07chars\x1f and\x7f ",
]

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT_OSS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDS}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDS}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
POSSESSIVE = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"


def isolated(pattern):
    return P.Split(Regex(pattern), "isolated")


def trained(model, trainer, normalizer=None, pre=None, decoder=None):
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre:
        tokenizer.pre_tokenizer = pre
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_level(pre, normalizer=None, special=("<|end|>",), **model):
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(special),
        initial_alphabet=P.ByteLevel.alphabet(),
        show_progress=False,
    )
    return trained(models.BPE(**model), trainer, normalizer, pre, D.ByteLevel())


def gpt2():
    tokenizer = byte_level(P.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def smollm():
    return byte_level(
        P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)])
    )


def llama3():
    tokenizer = byte_level(
        P.Sequence([isolated(LLAMA3), P.ByteLevel(add_prefix_space=False, use_regex=False)]),
        special=("<s>", "<|end|>"),
        ignore_merges=True,
    )
    template = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 0)]
    )
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), template]
    )
    return tokenizer


def split_byte_level(pattern, normalizer=None):
    return byte_level(
        P.Sequence([isolated(pattern), P.ByteLevel(add_prefix_space=False, use_regex=False)]),
        normalizer,
    )


def modern_bert():
    tokenizer = byte_level(
        P.ByteLevel(add_prefix_space=False), N.NFC(), special=("[CLS]", "[SEP]", "[UNK]")
    )
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("  ", normalized=True), AddedToken("Tok", normalized=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 0), ("[SEP]", 1)],
    )
    return tokenizer


def roberta():
    tokenizer = byte_level(P.ByteLevel(add_prefix_space=True), special=("<s>", "</s>"))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return tokenizer


BYTES = [f"<0x{i:02X}>" for i in range(256)]


def byte_fallback(normalizer, pre, decoder, special):
    trainer = trainers.BpeTrainer(
        vocab_size=520, special_tokens=list(special) + BYTES, limit_alphabet=60, show_progress=False
    )
    model = models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    words = P.Split("▁", "merged_with_next")
    tokenizer = trained(model, trainer, normalizer, words, decoder)
    tokenizer.pre_tokenizer = pre
    # Bytes are plain tokens of such vocabularies.
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] not in BYTES]
    return Tokenizer.from_str(json.dumps(data))


def llama2():
    return byte_fallback(
        N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]),
        None,
        D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)]),
        ("<unk>", "<s>", "</s>"),
    )


def mistral():
    return byte_fallback(
        None,
        P.Metaspace("▁", "first", split=False),
        D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)]),
        ("<unk>", "<s>", "</s>"),
    )


def gemma():
    return byte_fallback(
        N.Replace(" ", "▁"),
        P.Split(" ", "merged_with_previous"),
        D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse()]),
        ("<pad>", "<unk>", "<s>"),
    )


def bert(lowercase):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=special, show_progress=False
    )
    tokenizer = trained(
        models.WordPiece(unk_token="[UNK]"),
        trainer,
        N.BertNormalizer(lowercase=lowercase),
        P.BertPreTokenizer(),
        D.WordPiece(cleanup=lowercase),
    )
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def unigram(byte_fallback):
    special = ["<unk>", "<s>", "</s>"] + (BYTES if byte_fallback else [])
    trainer = trainers.UnigramTrainer(
        vocab_size=200 + len(special), special_tokens=special, unk_token="<unk>",
        show_progress=False,
    )
    normalizer = N.Sequence([N.NFC(), N.Strip(), N.Replace(Regex(" {2,}"), " ")])
    tokenizer = trained(
        models.Unigram(), trainer, normalizer, P.Metaspace("▁", "always"), D.Metaspace("▁", "always")
    )
    data = json.loads(tokenizer.to_str())
    data["model"]["byte_fallback"] = byte_fallback
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] not in BYTES]
    if byte_fallback:
        fallback = {"type": "ByteFallback"}
        data["decoder"] = {"type": "Sequence", "decoders": [fallback, data["decoder"]]}
    return Tokenizer.from_str(json.dumps(data))


def options(pre, normalizer=None, **model):
    """Parts and flags that no family above has."""
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False)
    tokenizer = trained(models.BPE(unk_token="<unk>", **model), trainer, normalizer, pre)
    tokenizer.add_tokens(
        [
            AddedToken("[special]", single_word=True, normalized=False),
            AddedToken("<lower>", lstrip=True, rstrip=True, normalized=True),
            AddedToken("Tok", normalized=True),
            AddedToken("<|end|>", rstrip=True, normalized=False, special=True),
        ]
    )
    return tokenizer


TOKENIZERS = {
    "gpt2": gpt2,
    "smollm": smollm,
    "llama2": llama2,
    "llama3": llama3,
    "mistral": mistral,
    "qwen3": lambda: split_byte_level(QWEN, N.NFC()),
    "olmo3": lambda: split_byte_level(POSSESSIVE),
    "gpt-oss": lambda: split_byte_level(GPT_OSS),
    "gemma": gemma,
    "modernbert": modern_bert,
    "roberta": roberta,
    "bert uncased": lambda: bert(True),
    "bert cased": lambda: bert(False),
    "unigram": lambda: unigram(False),
    "unigram bytes": lambda: unigram(True),
    "words": lambda: options(P.Whitespace(), N.Sequence([N.NFD(), N.StripAccents(), N.Lowercase()])),
    "fused unknown": lambda: options(P.WhitespaceSplit(), fuse_unk=True),
    "suffix": lambda: options(
        P.Sequence([P.WhitespaceSplit(), P.Digits(), P.Punctuation("contiguous")]),
        end_of_word_suffix="</w>",
    ),
    "punctuation removed": lambda: options(
        P.Sequence([P.Punctuation("removed"), P.Split(Regex(r"\s"), "merged_with_next")])
    ),
    "inverted": lambda: options(P.Split(Regex(r"[^\s\d]{2,4}?|\W+(?=\w)"), "removed", invert=True)),
}
PAIRS = [("Hello world", "It's 2023"), ("", "the"), ("<mask> and", "")]


def cases(tokenizer):
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        yield {
            "text": text,
            "ids": ids,
            "plain": tokenizer.encode(text, add_special_tokens=False).ids,
            "decoded": tokenizer.decode(ids),
            "kept": tokenizer.decode(ids, skip_special_tokens=False),
        }


def pairs(tokenizer):
    for a, b in PAIRS:
        encoding = tokenizer.encode(a, b)
        yield {"a": a, "b": b, "ids": encoding.ids, "type_ids": encoding.type_ids}


def write_gguf(name, tokenizer, model, **keys):
    """The vocabulary as llama.cpp's converters write it."""
    vocab = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    tokens = [token for token, _ in vocab]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    types = gguf.TokenType
    kinds = [
        types.UNKNOWN if token == "<unk>"
        else types.CONTROL if token in special
        else types.BYTE if token in BYTES
        else types.NORMAL
        for token in tokens
    ]
    writer = gguf.GGUFWriter(FOLDER / f"{name}.gguf", "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if model == "llama":
        # Merged tokens are numbered in the order of their merges.
        writer.add_token_scores([0.0 if kind != types.NORMAL else -float(i) for i, kind in enumerate(kinds)])
    else:
        writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    for key, value in keys.items():
        getattr(writer, f"add_{key}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main():
    rows = []
    for name, make in TOKENIZERS.items():
        tokenizer = make()
        data = json.loads(tokenizer.to_str())
        rows.append(
            {
                "name": name,
                "tokenizer": data,
                "cases": list(cases(tokenizer)),
                "pairs": list(pairs(tokenizer)),
            }
        )
    by_name = {row["name"]: row["tokenizer"] for row in rows}
    write_gguf("smollm", by_name["smollm"], "gpt2", tokenizer_pre="smollm", add_bos_token=False)
    write_gguf("llama2", by_name["llama2"], "llama", unk_token_id=0, bos_token_id=1, eos_token_id=2)
    text = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    (FOLDER / "tokenizers.json").write_text(f"[{text}]\n")


main()

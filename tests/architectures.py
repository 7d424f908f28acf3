"""Tiny random decoders of many architectures, and tokenizers of many conventions, made here rather than downloaded.

The weights are far larger than a fresh model's: with those the attention is almost uniform, and a wrong layer, head,
row or factor would hardly change a number.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["ARCHITECTURES", "EXTRA", "SINKS", "SLIDING", "TOKENIZERS", "VOCABULARY", "save"]

VOCABULARY = 512
POSITIONS = 256

# ---------------------------------------------------------------------------------------------------------------------
# Models

# Every family names the same few sizes in its own way.
_USUAL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": POSITIONS,
}
_GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS}
_NO_GROUPS = {name: size for name, size in _USUAL.items() if name != "num_key_value_heads"}
_GROUPS = {**_USUAL, "num_key_value_heads": 2}
_ALTERNATING = {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_PLAIN_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
_FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": POSITIONS}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

# Name: model type and settings. All families but falcon_alibi go by their model type.
_MAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", _GPT2),
    "llama": ("llama", _GROUPS),
    "mistral": ("mistral", {**_GROUPS, "sliding_window": 5}),
    "qwen2": ("qwen2", _GROUPS),
    "qwen3": ("qwen3", {**_GROUPS, "head_dim": 8}),
    "phi3": ("phi3", {**_GROUPS, "original_max_position_embeddings": POSITIONS}),
    "olmo2": ("olmo2", _GROUPS),
    # A cap this low bends most of the logits, so code that forgets it cannot agree.
    "gemma2": (
        "gemma2",
        {
            **_GROUPS,
            **_ALTERNATING,
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "attn_logit_softcapping": 3.0,
            "sliding_window": 6,
        },
    ),
    "gpt_oss": (
        "gpt_oss",
        {
            **_GROUPS,
            **_ALTERNATING,
            **_PLAIN_ROPE,
            "head_dim": 8,
            "sliding_window": 6,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "falcon": ("falcon", {**_FALCON, "multi_query": False, "new_decoder_architecture": False, "alibi": False}),
    "falcon_alibi": ("falcon", {**_FALCON, "multi_query": False, "new_decoder_architecture": False, "alibi": True}),
    "bloom": ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
}
_OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "biogpt": ("biogpt", _NO_GROUPS),
    "codegen": ("codegen", {**_GPT2, "n_ctx": POSITIONS, "rotary_dim": 4}),
    "cohere": ("cohere", _GROUPS),
    "gemma3_text": (
        "gemma3_text",
        {**_GROUPS, **_ALTERNATING, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 6},
    ),
    "gpt_neo": (
        "gpt_neo",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 6,
            "max_position_embeddings": POSITIONS,
        },
    ),
    "gpt_neox": ("gpt_neox", _NO_GROUPS),
    "gptj": ("gptj", {**_GPT2, "rotary_dim": 4}),
    "granite": ("granite", {**_GROUPS, "attention_multiplier": 8**-0.5}),
    "mpt": ("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": POSITIONS}),
    "olmo": ("olmo", _GROUPS),
    "opt": ("opt", {**_NO_GROUPS, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "phi": ("phi", _USUAL),
    "qwen3_moe": ("qwen3_moe", {**_GROUPS, **_EXPERTS, "head_dim": 8}),
    "stablelm": ("stablelm", _GROUPS),
    "starcoder2": ("starcoder2", {**_GROUPS, "sliding_window": None}),
}

# Layers that see no further than a window (a key is visible where query - key < window), by position.
SLIDING: dict[str, tuple[int, tuple[int, ...]]] = {
    "mistral": (5, (0, 1)),
    "gemma2": (6, (0, 2)),
    "gpt_oss": (6, (0, 2)),
    "gemma3_text": (6, (0, 2)),
    "gpt_neo": (6, (1,)),
}
# Architectures whose attention rows sum to less than 1, as a part of it goes to no token.
SINKS = frozenset({"gpt_oss"})


def _fill(model: PreTrainedModel, seed: int) -> None:
    """Random values for every parameter, large enough to matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("sinks"):
                parameter.copy_(noise + 1.0)
            elif any(part in name for part in ("q_norm", "k_norm", "q_layernorm", "k_layernorm")):
                # Queries and keys are normalized after their projection: its size is lost, so scale here. Gemma adds
                # 1 to the weight.
                gain = 0.7 if "gemma" in model.config.model_type else 1.7
                parameter.copy_(gain + 0.2 * noise)
            elif parameter.ndim == 1 or name.endswith("bias"):
                # Norm weights keep their 1 (or 0), biases their 0.
                parameter.add_(0.2 * noise)
            elif "emb" in name or "wte" in name or "wpe" in name:
                parameter.copy_(noise)
            else:
                # The smaller side: most matrices are square or grow, and fused query-key-value ones do too. Experts
                # multiply their two halves: as large, they would blow up float32's rounding beyond all comparison.
                gain = 0.5 if "expert" in name or "router" in name else 1.6
                parameter.copy_(noise * gain * min(parameter.shape[-2:]) ** -0.5)


def _build(name: str) -> PreTrainedModel:
    """The model of that name: body without head, float32, eager attention, the same values on every call."""
    model_type, settings = {**_MAIN, **_OTHERS}[name]
    # Unset: the default ids of special tokens lie beyond this small vocabulary.
    config = AutoConfig.for_model(
        model_type, **settings, vocab_size=VOCABULARY, pad_token_id=None, bos_token_id=None, eos_token_id=None
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of what is only added to below
        model: PreTrainedModel = AutoModel.from_config(config, attn_implementation="eager", dtype=torch.float32)
    _fill(model, zlib.crc32(name.encode()))
    model.eval()
    return model


ARCHITECTURES: dict[str, Callable[[], PreTrainedModel]] = {name: functools.partial(_build, name) for name in _MAIN}
EXTRA: dict[str, Callable[[], PreTrainedModel]] = {name: functools.partial(_build, name) for name in _OTHERS}


def save(name: str, folder: str | Path, tokenizer: str | PreTrainedTokenizerFast, *, causal_lm: bool = False) -> Path:
    """Write a model and a tokenizer (one of TOKENIZERS by its name, or any) for AutoModel and AutoTokenizer to load.

    ``causal_lm`` stores the same body inside a model with a language-modelling head, as most checkpoints are.
    """
    folder = Path(folder)
    model = _build(name)
    if causal_lm:
        with torch.random.fork_rng(devices=[]):
            whole: PreTrainedModel = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
        whole.base_model.load_state_dict(model.state_dict())
        model = whole
    model.save_pretrained(folder)
    if isinstance(tokenizer, str):
        tokenizer = TOKENIZERS[tokenizer]()
    tokenizer.save_pretrained(folder)
    return folder


# ---------------------------------------------------------------------------------------------------------------------
# Tokenizers

_LINES = """\
The river runs past the old mill and under the bridge.
A small dog slept on the steps of the house all afternoon.
She put her money in the bank before the end of the week.
They sat on the bank of the river and watched the boats.
The weather today is better than it was yesterday.
He reads the same book again and again, and never tires of it.
Where is the nearest station, and when does the last train leave?
The children are playing in the garden behind the school.
I would like a cup of tea with milk and no sugar, please.
The teacher asked the students to write a short paragraph.
Rewrite the following paragraph: the rewritten paragraph.
Instruct: find the document that answers the question.
Query: how do plants make food from light?
Query again: how do plants make food from light?
Document: plants make food from light, water and air.
Document again: plants make food from light, water and air.
This sentence: "the sea is calm" means in one word: "peace".
Write a paragraph: the market opens early in the morning.
Cooking rice takes about twenty minutes and a heavy pot.
The price of apples rose by ten percent in three months.
There are 365 days in a year, and 24 hours in a day.
My brother bought a new bicycle and rode it to the lake.
The museum is closed on Monday, but the park is open.
Heavy rain fell during the night and the streets were wet.
The doctor told him to rest, to drink water and to sleep.
Birds fly south when the winter comes to the mountains.
The film was long, but the ending was beautiful.
We need more paper, two pens and a box of chalk.
The letter arrived three days late, without a stamp.
An apple a day keeps the doctor away, as they say.
The computer is slow because the disk is full.
Light travels faster than sound through the air.
The old man walked slowly along the sandy beach.
She sings well, and her sister plays the piano.
The company sells phones, watches and small radios.
Every morning the baker makes bread for the village.
The team won the match in the last minute of the game.
You can see the stars when the sky is clear.
The train to the city leaves at nine o'clock.
He forgot his keys again and waited by the door.
A good question is worth more than a quick answer.
The cat watched the fish in the pond for an hour.
Green leaves turn yellow and red in the autumn.
The book on the table belongs to my teacher.
Please close the window before you leave the room.
The road over the hill is steep and narrow.
They planted a tree for every child in the town.
Music was playing in the street until midnight.
The meaning of a word depends on the words around it.
The second half of the sentence explains the first half.
今天的天气很好，我们去公园散步吧。
他每天早上都在河边跑步。
这本书我已经看过三遍了，还想再看一遍。
请问最近的地铁站在哪里？
老师让学生写一篇关于春天的短文。
苹果的价格在三个月里上涨了百分之十。
我想喝一杯热茶，不要加糖。
她把钱存进了银行，然后去买东西。
孩子们在学校后面的花园里玩耍。
昨天晚上下了很大的雨，街道都湿了。
这座桥很老，桥下的河水很清。
火车九点钟从北京出发，下午到达上海。
医生告诉他要多喝水，多休息。
我的弟弟买了一辆新的自行车。
博物馆星期一不开门，但是公园开门。
电影很长，不过结尾非常感人。
植物用阳光、水和空气制造食物。
冬天来了，鸟儿飞向温暖的南方。
一年有三百六十五天，一天有二十四小时。
电脑很慢，因为硬盘已经满了。
天空晴朗的时候可以看见星星。
光在空气中传播得比声音快。
老人沿着沙滩慢慢地走着。
她唱歌很好听，她的妹妹会弹钢琴。
这家公司出售手机、手表和收音机。
面包师每天早上为村里的人做面包。
球队在比赛的最后一分钟赢了。
他又忘了带钥匙，只好在门口等着。
一个好问题比一个快答案更有价值。
猫在池塘边看鱼，看了一个小时。
秋天，绿色的叶子变成了黄色和红色。
桌子上的那本书是我老师的。
离开房间之前请把窗户关上。
翻过山的那条路又陡又窄。
他们为镇上的每个孩子种了一棵树。
街上的音乐一直放到半夜。
一个词的意思取决于它周围的词。
句子的后半部分解释了前半部分。
中文里的词语之间没有空格。
人工智能正在改变我们的生活。
语言模型可以把句子变成向量。
北京是中国的首都，上海是最大的城市。
我们明天上午开会，请大家准时参加。
这个苹果很甜，那个苹果有点酸。
他打算去打球，她打电话给朋友。
水果店里有苹果、香蕉和西瓜。
意思意思就行了，你这是什么意思？
The word 意思 has many meanings in Chinese.
我用 Python 写了一个小程序。
北京 Beijing and 上海 Shanghai are large cities.
""".splitlines()

_CHAT = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@functools.cache
def _trained() -> str:
    """A byte-level BPE that leaves room in the vocabulary for special tokens, as JSON."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY - 8,
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    return str(tokenizer.to_str())


def _tokenizer(template: str | None, chat: str | None = None, **special: str) -> PreTrainedTokenizerFast:
    """A tokenizer with these special tokens, placed as in the template ("[CLS] $A [SEP]")."""
    backend = Tokenizer.from_str(_trained())
    backend.add_special_tokens(sorted(set(special.values())))
    if template is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=template,
            pair=f"{template} {template}".replace("$A", "$B").replace("$B", "$A", 1),
            special_tokens=[(token, backend.token_to_id(token)) for token in set(special.values())],
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=POSITIONS, clean_up_tokenization_spaces=False, **special
    )
    if chat is not None:
        tokenizer.chat_template = chat
    return tokenizer


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "plain": functools.partial(_tokenizer, None, eos_token="<|endoftext|>"),
    "bos": functools.partial(_tokenizer, "<s> $A", bos_token="<s>", eos_token="</s>"),
    "bos_eos": functools.partial(_tokenizer, "<s> $A </s>", bos_token="<s>", eos_token="</s>"),
    "cls_sep": functools.partial(
        _tokenizer, "[CLS] $A [SEP]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]"
    ),
    "no_pad_no_eos": functools.partial(_tokenizer, None, unk_token="<unk>"),
    "chat": functools.partial(_tokenizer, "<s> $A", _CHAT, bos_token="<s>", eos_token="</s>", pad_token="<pad>"),
}

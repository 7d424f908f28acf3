"""Texts that examples.py draws its examples from, besides those of the package."""

from __future__ import annotations

from typing import NamedTuple


class Passage(NamedTuple):
    """A passage, a question that it answers, and the word for both."""

    text: str
    question: str
    word: str


MORE_EXAMPLES = (
    ("The chef chops onions in a small kitchen.", "Cooking"),
    ("Two boys kick a ball across the yard.", "Football"),
    ("Shares of the airline fell after the report.", "Loss"),
    ("The bridge was closed because of the flood.", "Closure"),
    ("An old man sleeps on a bench in the park.", "Sleeping"),
    ("The court rejected the appeal of the mayor.", "Rejection"),
    ("You should restart the router first.", "Advice"),
    ("A woman plays the violin on the stage.", "Music"),
    ("Nobody knows why the bees are dying.", "Mystery"),
    ("Three dogs run through the snow.", "Dogs"),
    ("The new law raises taxes on fuel.", "Taxes"),
    ("I missed the last train home.", "Delay"),
    ("Scientists found water under the ice of Mars.", "Discovery"),
    ("He repairs bicycles in his garage.", "Repair"),
    ("The team won the final after extra time.", "Victory"),
    ("Police arrested a man at the station.", "Arrest"),
)
MORE_EXAMPLES_ZH = (
    ("厨师在小厨房里切洋葱。", "做饭"),
    ("两个男孩在院子里踢球。", "足球"),
    ("报告发布后航空公司股价下跌。", "亏损"),
    ("大桥因洪水关闭。", "封路"),
    ("一位老人睡在公园的长椅上。", "睡觉"),
    ("法院驳回了市长的上诉。", "驳回"),
    ("你应该先重启路由器。", "建议"),
    ("一个女人在台上拉小提琴。", "音乐"),
    ("没人知道蜜蜂为什么在死去。", "谜团"),
    ("三只狗在雪地里奔跑。", "狗"),
    ("新法律提高了燃油税。", "税收"),
    ("我错过了回家的末班车。", "误车"),
)
PASSAGES = (
    Passage(
        "The bridge was closed on Monday after inspectors found cracks in two of its pillars. "
        "Buses are being sent around by the ring road, and the city expects the repair to take "
        "until spring.",
        "why was the bridge closed",
        "closure",
    ),
    Passage(
        "Vitamin D is made in the skin under sunlight. In winter many people in the north have "
        "too little of it, so doctors measured whether a daily pill lowers the number of colds; "
        "it did not.",
        "does vitamin d prevent colds",
        "vitamins",
    ),
    Passage(
        "A tenant who moves out before the end of the contract must pay the rent until another "
        "tenant is found, unless the landlord agrees to something else in writing.",
        "do I owe rent if I move out early",
        "rent",
    ),
    Passage(
        "Sparrows sing louder near busy roads. The authors recorded four hundred birds in twelve "
        "cities and found that their songs begin at a higher pitch where there is more traffic.",
        "how does traffic change birds' songs",
        "birdsong",
    ),
    Passage(
        "The library lends books for four weeks. A book can be renewed twice if nobody else has "
        "asked for it; after that a fee is due for every day.",
        "how long can I keep a library book",
        "lending",
    ),
    Passage(
        "Steel that is cooled quickly becomes hard and brittle. Heating it again to a moderate "
        "temperature gives back some of its toughness at the cost of a little hardness.",
        "why is steel heated twice",
        "steel",
    ),
    Passage(
        "Prices of wheat rose for the third month because of a drought in the south. Bakers say "
        "that bread will cost more by the end of the year.",
        "what makes bread more expensive",
        "wheat",
    ),
    Passage(
        "The program reads a file line by line and counts how often each word occurs, so that it "
        "needs no more memory than the words themselves.",
        "count words in a large file",
        "counting",
    ),
    Passage(
        "Children who learn an instrument before the age of seven tell tones apart better as "
        "adults. Whether the lessons are the cause, or the families, nobody has shown.",
        "do music lessons train the ear",
        "music",
    ),
    Passage(
        "A glacier moves because ice yields under its own weight, and because water lets it slide "
        "over the rock. In warm summers the second share grows.",
        "what makes glaciers move",
        "glaciers",
    ),
    Passage(
        "Whoever finds a wallet has to hand it in at the town hall. If the owner does not come "
        "within six months, it belongs to the finder.",
        "what must I do with a wallet that I found",
        "property",
    ),
    Passage(
        "The museum shows two hundred letters that sailors wrote home. Most tell of the weather "
        "and the food; hardly any speak of the war.",
        "what did sailors write about",
        "letters",
    ),
)
PASSAGES_ZH = (
    Passage(
        "检查人员在两根桥墩上发现裂缝后，大桥于周一关闭。公交车改走环路，市政府预计维修要持续到春天。",
        "大桥为什么关闭",
        "封桥",
    ),
    Passage(
        "维生素D是皮肤在阳光下合成的。冬天北方许多人缺乏它，于是医生测试每天服药能否减少感冒，结果不能。",
        "维生素D能预防感冒吗",
        "维生素",
    ),
    Passage(
        "租客在合同到期前搬走的，须继续支付租金，直到找到新的租客为止，房东书面同意另作安排的除外。",
        "提前退租还要交房租吗",
        "租金",
    ),
    Passage(
        "麻雀在繁忙的道路附近叫得更响。作者在十二座城市录下四百只鸟的叫声，发现车流越多，歌声的起音越高。",
        "交通怎样影响鸟的叫声",
        "鸟鸣",
    ),
    Passage(
        "图书馆借书期限为四周。没有其他人预约时可以续借两次，之后每逾期一天收取费用。",
        "图书馆的书可以借多久",
        "借阅",
    ),
    Passage(
        "快速冷却的钢又硬又脆。再加热到适中的温度，会牺牲一点硬度，恢复部分韧性。",
        "钢为什么要加热两次",
        "钢",
    ),
    Passage(
        "由于南方干旱，小麦价格连续第三个月上涨。面包师说，到年底面包会更贵。",
        "面包为什么涨价",
        "小麦",
    ),
    Passage(
        "程序逐行读取文件，统计每个词出现的次数，所占内存不超过这些词本身。",
        "怎样统计大文件里的词",
        "计数",
    ),
    Passage(
        "七岁以前学乐器的孩子，成年后更能分辨音高。原因是课程还是家庭，没有人证明过。",
        "学音乐能训练听力吗",
        "音乐",
    ),
    Passage(
        "冰川移动，是因为冰在自身重量下变形，也因为水使它在岩石上滑动。夏天越热，后者的比重越大。",
        "冰川为什么会移动",
        "冰川",
    ),
    Passage(
        "捡到钱包的人应当交到镇政府。失主六个月内没有来领取的，钱包归拾得人所有。",
        "捡到钱包该怎么办",
        "拾得",
    ),
    Passage(
        "博物馆展出了水手写给家里的两百封信。信里大多谈天气和饮食，很少提到战争。",
        "水手在信里写了什么",
        "书信",
    ),
)

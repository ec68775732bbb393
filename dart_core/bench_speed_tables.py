"""A speed run's record as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dart_core.bench_figures import CONFIDENCE
from dart_core.bench_tables import markdown
from dart_core.memory import gib
from dart_core.metrics import sizes_in_words
from dart_core.names import model_name
from dart_core.report import STAGES, number


def speed_tables(record: Mapping[str, Any]) -> str:
    """Everything that the record holds, as Markdown."""
    parts = [_conditions(record)]
    if record.get("prompts"):
        parts += [_speed_table(record), _ratio_table(record), _texts(record), _stages(record)]
    parts += [
        table(record[name])
        for name, table in (
            ("floors", _floor_table),
            ("layers", _layer_table),
            ("contexts", _context_table),
            ("startup", _startup),
            ("pruner", _pruner_table),
        )
        if record.get(name)
    ]
    return "\n\n".join(part for part in parts if part)


def _conditions(record: Mapping[str, Any]) -> str:
    prompts, threads = len(record.get("prompts") or ()), record["threads"]
    repeats = record["repeats"]
    said = [
        f"{model_name(record['target'])}, {record['dtype']}, on {record['device_name']} ({threads} "
        f"thread{'s' if threads > 1 else ''} for all)"
    ]
    if prompts:
        said += [
            f"greedy, at most {record['settings']['max_new_tokens']} new tokens",
            f"{prompts} prompts, {repeats} repeat{'s' if repeats > 1 else ''} each, in turns",
            "speeds are of decoding, the prefill left out, medians over repeats, means over "
            "prompts and sets",
            f"intervals: {CONFIDENCE:.0%}, over prompts",
        ]
    loads = " → ".join(f"{load:.1f}" for load in record["load_average"])
    said.append(f"load of the machine {loads or 'unknown'}")
    lines = ["; ".join(said)]
    if record.get("interrupted"):
        lines.insert(0, "INTERRUPTED, not all was measured.")
    lines += [f"Left out: {each}." for each in record.get("left_out") or ()]
    return "\n\n".join(lines)


def _span(figure: Mapping[str, Any], digits: int = 2) -> str:
    text = number(figure["value"], digits)
    if figure["interval"]:
        low, high = figure["interval"]
        text += f" ({low:.{digits}f} to {high:.{digits}f})"
    return text


def _speed_table(record: Mapping[str, Any]) -> str:
    sets = list(record["sets"])
    rows = []
    for name, each in record["contestants"].items():
        speed, tau, per_tau = each["tokens_per_second"], each["tau"], each["speedup_per_tau"]
        far = each["repeat_spread"]
        rows.append(
            [
                name,
                each["what"],
                *(number(speed["sets"][set_]["value"], 1) for set_ in sets),
                _span(speed, 1),
                number(tau["value"]) if tau else "–",
                _span(per_tau) if per_tau else "–",
                "–" if far is None else f"{far:.0%}",
            ]
        )
    header = ["tokens a second", "", *sets, "mean", "τ", "speedup ÷ τ", "repeats lie apart"]
    return markdown(header, rows)


def _ratio_table(record: Mapping[str, Any]) -> str:
    sets = list(record["sets"])
    rows = [
        [name.replace("_vs_", " ÷ "), *(_span(found["sets"][set_]) for set_ in sets), _span(found)]
        for name, found in record["ratios"].items()
    ]
    return markdown(["speeds", *sets, "mean"], rows) if rows else ""


def _texts(record: Mapping[str, Any]) -> str:
    lines = []
    for name, each in record["contestants"].items():
        counted = ", ".join(f"{count} {status}" for status, count in each["texts"].items())
        places = sorted(each["first_differences"])
        if places:
            shown = ", ".join(map(str, places[:12])) + (" …" if len(places) > 12 else "")
            counted += f" (first different token: {shown})"
        lines.append(f"{name} {counted}")
    return "Texts against our plain decoding's: " + "; ".join(lines) + "."


def _stages(record: Mapping[str, Any]) -> str:
    """Milliseconds a step by stage."""
    rows = []
    for name, each in record["contestants"].items():
        seconds, runs = each["median_step_seconds"], each["runs"]
        if seconds:
            drafted = runs["speculative_decoding"]["num_draft_tokens"] / runs["verify_steps"]
            rows.append([name, *map(_ms, seconds.values()), f"{drafted:.1f}"])
    if not rows:
        return ""
    header = ["ms a step, medians", *STAGES, "all", "nodes drafted, mean"]
    sizes = [
        f"{name}: {sizes_in_words(each['chosen_sizes'])}."
        for name, each in record["contestants"].items()
        if each["chosen_sizes"]
    ]
    return "\n\n".join([markdown(header, rows), *sizes])


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"


def _quartiles(seconds: Mapping[str, float]) -> str:
    return f"{_ms(seconds['median'])} ({_ms(seconds['low'])} to {_ms(seconds['high'])})"


def _floor_table(floors: Mapping[str, Any]) -> str:
    memory, matmul = floors["memory"], floors["matmul"]
    rows = [
        [
            str(row["rows"]),
            _ms(row["reading_seconds"]),
            _ms(row["arithmetic_seconds"]),
            _ms(row["floor_seconds"]),
            _quartiles(row["seconds"]),
            number(row["seconds"]["median"] / row["floor_seconds"]),
            number(row["of_one_row"]),
        ]
        for row in floors["verify"]
    ]
    drafts = "; ".join(
        f"{name}: {each['passes']} pass{'es' if each['passes'] > 1 else ''}, "
        f"{gib(each['bytes'])}, {_ms(each['floor_seconds'])} ms"
        for name, each in floors["draft"].items()
    )
    head = (
        f"Floors: memory is read at {memory['bytes_per_second'] / 1e9:.1f} GB/s "
        f"({gib(memory['buffer_bytes'])}, {memory['way']}), matrices are multiplied at "
        f"{matmul['flops_per_second'] / 1e9:.0f} Gflop/s ({matmul['size']} × {matmul['size']}); a "
        f"forward reads {gib(floors['weight_bytes'])} of weights. Verify passes behind "
        f"{floors['context']} tokens, ms, medians with quartiles:"
    )
    header = ["nodes", "reading", "arithmetic", "floor", "measured", "÷ floor", "÷ one node"]
    text = f"{head}\n\n{markdown(header, rows)}"
    if drafts:
        text += f"\n\nReading the draft heads' weights, a step: {drafts}."
    steps = ", ".join(f"{name} {_ms(seconds)}" for name, seconds in floors["steps"].items())
    return f"{text}\n\nA step at best, tree budget {floors['tree_budget']}, ms: {steps}."


def _layer_table(layers: Mapping[str, Any]) -> str:
    passes = layers["passes"]
    last = passes[-1]
    kinds = sorted(last["kinds"], key=last["kinds"].get, reverse=True)
    rows = [
        [
            kind,
            *(
                f"{_ms(each['kinds'][kind])} ({100 * each['kinds'][kind] / each['seconds']:.0f} %)"
                for each in passes
            ),
        ]
        for kind in kinds
    ]
    rows.append(["all", *(_ms(each["seconds"]) for each in passes)])
    header = ["ms by layer", *(_nodes(each["rows"]) for each in passes)]
    return (
        f"Verify passes behind {layers['context']} tokens by kind of layer, each without what is "
        f"in it, all layers together, medians:\n\n{markdown(header, rows)}"
    )


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count > 1 else ''}"


def _context_table(contexts: Mapping[str, Any]) -> str:
    names = list(contexts["growth"])
    rows = [
        [str(row["context"]), *(_quartiles(row["seconds"][name]) for name in names)]
        for row in contexts["rows"]
    ]
    growth = contexts["growth"].values()
    rows.append(["longest ÷ shortest", *(number(each["times"]) for each in growth)])
    if len(contexts["rows"]) > 1:
        slopes = (f"{_ms(each['seconds_per_1000'])}" for each in growth)
        rows.append(["more per 1000 tokens", *slopes])
    kept = ", ".join(f"{name} {size:,.0f}" for name, size in contexts["kv_bytes_per_token"].items())
    head = (
        f"Behind a context, ms, medians with quartiles (bytes of keys and values a token: {kept}):"
    )
    return f"{head}\n\n{markdown(['context', *names], rows)}"


def _startup(startup: Mapping[str, Any]) -> str:
    parts = []
    if startup["load_seconds"] is not None:
        parts.append(f"loading the engine {startup['load_seconds']:.1f} s (once)")
    opened = startup["ngram_open"]
    if opened:
        parts.append(
            f"opening the n-gram ({gib(opened['file_bytes'])}) in a fresh process "
            f"{_quartiles(opened['seconds'])} ms, its first query "
            f"{_quartiles(opened['first_query_seconds'])} ms"
        )
    firsts = ", ".join(f"{n} {_quartiles(each)}" for n, each in startup["first_token"].items())
    parts.append(f"first token of a prompt of {startup['prompt_tokens']} tokens, ms: {firsts}")
    return "Start-up: " + "; ".join(parts) + "."


def _pruner_table(pruner: Mapping[str, Any]) -> str:
    def shown(quartiles: Mapping[str, float]) -> str:
        return "{median:.0f} ({low:.0f} to {high:.0f})".format(**quartiles)

    rows = []
    for each in pruner["searches"]:
        for backend, quartiles in each["microseconds"].items():
            found = f"{each['ngram']}, {each['ngram_nodes']:,} nodes"
            rows.append([f"search, {backend}", found, shown(quartiles)])
    again = pruner["rerank"]
    found = f"depth {again['depth']}, top-k {again['top_k']}"
    rows.append(["re-ranking of EAGLE3", found, shown(again["microseconds"])])
    equal = all(each["equal_trees"] for each in pruner["searches"])
    head = (
        f"Tree search: k {pruner['width']}, beam {pruner['beam']}, {pruner['levels']} levels, "
        f"{pruner['nodes']} nodes; native and Python twin gave "
        f"{'the same trees' if equal else 'DIFFERENT trees'}. Microseconds a call, medians with "
        "quartiles:"
    )
    return f"{head}\n\n{markdown(['', '', 'µs'], rows)}"

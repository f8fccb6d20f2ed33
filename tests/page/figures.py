"""What the page must show of a state that the daemon told: the same figures, put into words once more."""


def count(n):
    return f"{n:,}".replace(",", "\u202f")


def rate(x):
    return f"{x:.1f}" if x < 9.95 else f"{x:.0f}"


def time(ms):
    if ms < 999.5:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 59_950 else f"{ms / 60_000:.0f} min"


def share(part, whole):
    return f"{part * 100.0 / whole:.0f} %" if whole else "–"


def size(n):
    for unit, limit in (("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20)):
        if n < limit * 1024:
            return f"{n / limit:.{1 if unit == 'MiB' else 0}f} {unit}"
    return f"{n / (1 << 30):.1f} GiB"


def short(n):
    return f"{n / 1e3:.0f} K" if n < 1e6 else f"{n / 1e6:.1f} M" if n < 1e9 else f"{n / 1e9:.1f} B"


def agent(status):
    states = {
        "idle": "○ idle",
        "sharing": "◌ waits to share a prompt",
        "prefill": f"◐ reading {share(status['prompt_done'], status['prompt_tokens'])}",
        "decode": "● writing",
    }
    offered, accepted = status["drafts_offered"], status["drafts_accepted"]
    places = [share(a, o).replace(" %", "") for a, o in zip(accepted, offered)]
    first = status["first_token_ms"]
    return {
        "state": states[status["state"]],
        "task": status["task"] or "–",
        "now": rate(status["tokens_per_second_now"]),
        "context": f"{count(status['context_tokens'])} of {count(status['context_limit'])}",
        "prompt": f"{count(status['prompt_done'])} of {count(status['prompt_tokens'])}",
        "drafts": share(sum(accepted), sum(offered)),
        "places": (places + ["–"] * 8)[:8],
        "cached": share(status["cached_tokens"], status["prompt_tokens"]),
        "first": "–" if first is None else time(first),
        "queued": time(status["queued_ms"]),
        "written": f"{count(status['generated_tokens'])} at {rate(status['tokens_per_second'])}/s",
        "pages": f"{status['pages']} ({status['pages_shared']})",
        "session": status["session"] or "–",
        "tail": status["tail"] or "",
    }


def owners(part):
    agents = ", ".join(map(str, part["agents"]))
    if not part["agents"]:
        return "prompts kept for later"
    words = f"agent {agents}" if len(part["agents"]) == 1 else f"agents {agents} together"
    return words + (", kept for later too" if part["kept"] else "")


def page(state):
    daemon, engine, model = state["daemon"], state["daemon"]["engine"], state["daemon"]["model"]
    agents, types = engine["agents"], model["types"]
    summed = lambda name: sum(sum(status[name]) for status in agents)
    cached, computed = engine["prompt_tokens_cached"], engine["prompt_tokens_computed"]
    all_bytes = sum(kind["bytes"] for kind in types)
    return {
        "model": f"{model['name']} · {types[0]['name']}",
        "backend": engine["backend"],
        "rate": rate(sum(status["tokens_per_second_now"] for status in agents)),
        "working": f"{sum(status['state'] != 'idle' for status in agents)} of {len(agents)}",
        "queued": str(engine["queued"]),
        "cached": share(cached, cached + computed),
        "accepted": share(summed("drafts_accepted"), summed("drafts_offered")),
        "generated": count(engine["tokens_generated"]),
        "steps": rate(engine["steps_per_second"]),
        "finished": count(engine["requests_finished"]),
        "cancelled": count(engine["requests_cancelled"]),
        # A CPU has no card to reach the limit of.
        "limit": "–",
        "pages": f"{count(engine['pages_total'] - engine['pages_free'])} of {count(engine['pages_total'])}",
        "resting": str(engine["resting"]),
        "free": count(engine["pages_free"]),
        "pool": [owners(part) + count(part["pages"]) for part in engine["pool"]] + ["free" + count(engine["pages_free"])],
        "queue": [
            {"queued": "◷ queued", "fetching": "⇡ from disk", "parked": "‖ parked"}[waiting["state"]]
            + (waiting["session"] or f"request {waiting['request']}")
            + f"{count(waiting['prompt_tokens'])} tokens{time(waiting['waited_ms'])}"
            for waiting in engine["queue"][:6]
        ],
        "shown": f"{len(state['requests'])} of the latest {len(state['requests'])}",
        "name": model["name"],
        "file": model["file"] or "ships with the program",
        "size": f"{size(model['bytes'])}, {short(model['parameters'])} parameters",
        "blocks": f"{model['blocks']}, of them {model['attention_blocks']} with attention",
        "limits": f"{count(model['context'])} tokens of context, {count(model['vocab'])} in its vocabulary",
        "head": "yes" if model["draft_head"] else "no",
        "types": ", ".join(f"{kind['name']} {share(kind['bytes'], all_bytes)}" for kind in types),
        "daemon": f"openjetd {daemon['version']}, process {daemon['pid']}, up {time(int(daemon['uptime_s']) * 1000)}",
    }


# All figures at one moment, and the number of the message that they are from.
READ = """
const read = (root, skip) => Object.fromEntries([...root.querySelectorAll('[data-figure]')]
    .filter(e => !skip || !e.closest(skip))
    .map(e => [e.dataset.figure, ['OL', 'UL'].includes(e.tagName) ? [...e.children].map(li => li.textContent) : e.textContent]));
return {
    number: Number(document.querySelector('main').dataset.number),
    page: read(document, '.card'),
    cards: [...document.querySelectorAll('.card')].map(card => read(card)),
};
"""

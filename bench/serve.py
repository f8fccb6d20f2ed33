#!/usr/bin/env python3
"""Measures a model on openjetd over HTTP: starts the daemon once for each draft depth, prints a table, writes JSON.

usage: serve.py OPENJETD MODEL.gguf OUT.json [DRAFT ...]      (draft depths, default 0 2 4)

With a synthetic model (openjetctl synth) the text is known: MODEL.chain.json beside the model tells which token follows which,
and every answer is compared with it. Needs Python 3.9, nothing else.
"""
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.request

URL = "http://127.0.0.1:18099"


def post(path, body):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def start(daemon, model, draft):
    """Starts the daemon and returns it with the seconds until it is ready."""
    arguments = [daemon, "--model", model, "--listen", URL[7:], "--control", "/tmp/serve-bench.sock"]
    arguments += ["--agents", "8", "--draft", str(draft), "--ctx", "131072"]
    began = time.time()
    process = subprocess.Popen(arguments)
    while True:
        try:
            with urllib.request.urlopen(URL + "/health", timeout=5):
                return process, time.time() - began
        except OSError:
            if process.poll() is not None or time.time() - began > 300:
                sys.exit(f"openjetd did not become ready (exit code {process.poll()})")
            time.sleep(0.2)


class Bench:
    def __init__(self, chain, seed=1):
        self.next = chain["next"] if chain else None
        self.random = random.Random(seed)
        self.wrong = 0

    def prompt(self, tokens):
        high = len(self.next) - 10 if self.next else 8000
        return [self.random.randrange(400, high) for _ in range(tokens)]

    def ask(self, prompt, tokens):
        answer = post("/v1/completions", {"model": "bench", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                                          "return_token_ids": True})
        if self.next:
            expected, at = [], prompt[-1]
            for _ in range(tokens):
                at = self.next[at]
                expected.append(at)
            if answer["choices"][0].get("token_ids") != expected:
                self.wrong += 1
        return answer

    def together(self, agents, context, tokens):
        """Total tokens a second of agents that write at the same time, after their prompts."""
        prompts = [self.prompt(context) for _ in range(agents)]
        answers = [None] * agents

        def work(i):
            answers[i] = self.ask(prompts[i], tokens)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(agents)]
        began = time.time()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.time() - began
        timings = [a["timings"] for a in answers]
        decode = [t["predicted_per_second"] for t in timings]
        offered = sum(t.get("draft_n", 0) for t in timings)
        return {
            "agents": agents, "context": context, "tokens": tokens,
            "total_tok_s": round(agents * tokens / seconds, 1),
            "sum_of_decode_tok_s": round(sum(decode), 1),
            "prompt_tok_s": round(sum(t["prompt_n"] for t in timings) / max(t["prompt_ms"] for t in timings) * 1e3, 1),
            "accepted": round(sum(t.get("draft_n_accepted", 0) for t in timings) / offered, 3) if offered else None,
        }


def main():
    daemon, model, out = sys.argv[1:4]
    depths = [int(k) for k in sys.argv[4:]] or [0, 2, 4]
    known = os.path.splitext(model)[0] + ".chain.json"
    chain = json.load(open(known)) if os.path.exists(known) else None
    results = []
    for draft in depths:
        process, ready = start(daemon, model, draft)
        try:
            bench = Bench(chain)
            bench.together(1, 64, 32)
            rows = [bench.together(n, 64, 256) for n in (1, 2, 4, 8)]
            if draft == 2:
                rows.append(bench.together(1, 4096, 1))
                rows.append(bench.together(4, 23000, 128))
                long = bench.prompt(23000)
                text = bench.ask(long, 16)["choices"][0].get("token_ids") or []
                follow = bench.ask(long + text + bench.prompt(8), 1)["timings"]
                rows.append({"follow_up_ms": follow["prompt_ms"], "new_tokens": follow["prompt_n"]})
            for row in rows:
                row["draft"] = draft
                print(row, flush=True)
            results.append({"draft": draft, "ready_s": round(ready, 1), "wrong_texts": bench.wrong, "rows": rows})
            print(f"draft {draft}: ready in {ready:.1f} s, {bench.wrong} wrong texts", flush=True)
            json.dump(results, open(out, "w"), indent=1)
        finally:
            process.terminate()
            process.wait(60)


main()

"""The command-line agents: how each is started without a terminal on a server of ours, and how it is told of the tool `note`.

OPENJET_AGENTS names the folder with those for Node, OPENJET_AIDER the one with aider's program.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

SYSTEM = "You are a coding agent."

# What the shipped model answers with a few lines of code, where it goes on and on after much else.
TASK = "Write a Python function `add` that does this: Return the sum of two numbers."


@dataclasses.dataclass
class Run:
    """A place for one run: a folder of work and a home folder, so that no agent sees the user's settings."""

    url: str
    model: str
    work: pathlib.Path
    home: pathlib.Path
    # Without it the agent runs as it is installed; with it on a short prompt, with the tool `note` alone.
    lean: bool = False

    def __post_init__(self):
        self.work.mkdir(parents=True, exist_ok=True)
        self.home.mkdir(parents=True, exist_ok=True)
        self.notes = self.home / "notes"

    def mcp(self):
        """The server with the tool `note`, as most agents are told of it."""
        script = str(pathlib.Path(__file__).with_name("notes.py"))
        return {"command": sys.executable, "args": [script], "env": {"NOTES": str(self.notes), "RESULT": TASK}}

    def noted(self):
        """What the tool was called with."""
        return [json.loads(line) for line in self.notes.read_text().splitlines()] if self.notes.exists() else []


def claude(run, prompt):
    words = ["claude", "-p", prompt, "--model", run.model]
    environment = {
        "ANTHROPIC_BASE_URL": run.url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    if run.lean:
        servers = json.dumps({"mcpServers": {"notes": run.mcp()}})
        words += ["--tools", "", "--mcp-config", servers, "--strict-mcp-config", "--system-prompt", SYSTEM]
        words += ["--allowedTools", "mcp__notes__note"]
        environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = "400"
    else:
        words += ["--permission-mode", "acceptEdits", "--allowedTools", "Bash(python3:*)"]
    return words, environment


def codex(run, prompt):
    provider = {"name": "OpenJet", "base_url": run.url + "/v1", "wire_api": "responses", "request_max_retries": 0}
    settings = {"model_provider": "openjet", **{f"model_providers.openjet.{key}": value for key, value in provider.items()}}
    words = ["codex", "exec", "--skip-git-repo-check", "--model", run.model]
    if run.lean:
        instructions = run.home / "instructions.md"
        instructions.write_text(SYSTEM)
        settings["model_instructions_file"] = str(instructions)
        settings["web_search"] = "disabled"
        for feature in ("multi_agent", "goals", "shell_tool", "view_image", "plugins", "apps"):
            settings[f"features.{feature}"] = False
        server = run.mcp()
        settings |= {f"mcp_servers.notes.{key}": server[key] for key in ("command", "args")}
        settings |= {f"mcp_servers.notes.env.{key}": value for key, value in server["env"].items()}
        settings["mcp_servers.notes.default_tools_approval_mode"] = "approve"
    else:
        words += ["--sandbox", "workspace-write"]
    # Values are TOML, of which these JSON values are a part.
    for key, value in settings.items():
        words += ["--config", f"{key}={json.dumps(value)}"]
    return [*words, prompt], {}


def qwen(run, prompt):
    words = ["qwen", "--prompt", prompt, "--auth-type", "openai", "--approval-mode", "yolo"]
    if run.lean:
        servers = json.dumps({"mcpServers": {"notes": run.mcp()}})
        words += ["--bare", "--system-prompt", SYSTEM, "--mcp-config", servers]
        for tool in ("edit", "notebook_edit", "read_file", "run_shell_command", "get_goal", "update_goal"):
            words.append(f"--exclude-tools={tool}")
    environment = {"OPENAI_BASE_URL": run.url + "/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": run.model}
    return words, environment | {"QWEN_CODE_SUPPRESS_YOLO_WARNING": "1"}


def opencode(run, prompt):
    model = {"name": run.model, "limit": {"context": 32768, "output": 400 if run.lean else 8192}}
    options = {"baseURL": run.url + "/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "OpenJet", "options": options, "models": {run.model: model}}
    settings = {
        "provider": {"openjet": provider},
        "model": f"openjet/{run.model}",
        "small_model": f"openjet/{run.model}",
        "autoupdate": False,
        "share": "disabled",
        "permission": {"edit": "allow", "bash": "allow", "webfetch": "deny"},
    }
    words = ["opencode", "run"]
    if run.lean:
        server = run.mcp()
        notes = {"type": "local", "command": [server["command"], *server["args"]], "environment": server["env"]}
        settings["mcp"] = {"notes": notes}
        settings["agent"] = {"lean": {"mode": "primary", "prompt": SYSTEM, "tools": {"*": False, "notes_note": True}}}
        words += ["--agent", "lean"]
    (run.work / "opencode.json").write_text(json.dumps(settings))
    return [*words, prompt], {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}


def aider(run, prompt):
    # It has no tools: it edits what it is given by the form of the model's text.
    files = sorted(str(path) for path in run.work.glob("*.py"))
    words = ["aider", "--model", f"openai/{run.model}", "--message", prompt, "--yes-always", "--no-auto-commits", "--no-git"]
    words += ["--no-check-update", "--no-show-model-warnings", "--no-analytics", "--no-pretty", *files]
    return words, {"OPENAI_API_BASE": run.url + "/v1", "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


# By the name of the tool `note` in each agent's requests; aider has no tools.
AGENTS = {
    "claude": (claude, "mcp__notes__note"),
    "codex": (codex, "mcp__notes__note"),
    "qwen": (qwen, "mcp__notes__note"),
    "opencode": (opencode, "notes_note"),
    "aider": (aider, None),
}


def start(name, run, prompt, timeout=300):
    """Runs an agent to its end; returns what subprocess says of it."""
    words, environment = AGENTS[name][0](run, prompt)
    bins = [os.environ["OPENJET_AIDER"], os.path.join(os.environ["OPENJET_AGENTS"], "node_modules", ".bin")]
    clean = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG", "LC_ALL", "TMPDIR")}
    clean |= {"HOME": str(run.home), "PATH": os.pathsep.join([*bins, clean["PATH"]]), "TERM": "dumb"}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A session of its own: what it starts must end with it.
    process = subprocess.Popen(words, cwd=run.work, env=clean | environment, start_new_session=True, **streams)
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return subprocess.CompletedProcess(words, process.returncode, out, err)

//! Every endpoint and every field of its requests, as documentation: `docs/api.md` and `/openapi.json`. The tables are those
//! that requests are read with.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::conversation::format;
use super::fields::{Field, Support};
use super::{chat, completions, messages, responses, sampling, text};

/// An endpoint.
struct Endpoint {
    method: &'static str,
    path: &'static str,
    about: &'static str,
    /// The fields of the request.
    fields: &'static [&'static [Field]],
    /// Fields that must be there.
    required: &'static [&'static str],
    /// A request that is answered, in JSON.
    example: &'static str,
    /// Objects within the request.
    parts: &'static [(&'static str, &'static [Field])],
}

const fn get(path: &'static str, about: &'static str) -> Endpoint {
    Endpoint { method: "get", path, about, fields: &[], required: &[], example: "", parts: &[] }
}

const CHAT_PARTS: &[(&str, &[Field])] = &[
    ("messages[]", chat::messages::MESSAGE),
    ("messages[].content[]", chat::messages::PART),
    ("messages[].tool_calls[]", chat::messages::CALL),
    ("messages[].tool_calls[].function", chat::messages::FUNCTION),
    ("tools[]", chat::messages::TOOL),
    ("tools[].function", chat::messages::TOOL_FUNCTION),
    ("response_format.json_schema", format::SCHEMA),
];

const MESSAGES_PARTS: &[(&str, &[Field])] = &[
    ("messages[]", messages::content::MESSAGE),
    ("messages[].content[]", messages::content::BLOCK),
    ("tools[]", messages::request::TOOL),
];

const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: "post",
        path: "/v1/chat/completions",
        about: "Answers a conversation (OpenAI).",
        fields: &[chat::request::FIELDS, sampling::FIELDS],
        required: &["messages"],
        example: r#"{"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}"#,
        parts: CHAT_PARTS,
    },
    Endpoint {
        method: "post",
        path: "/v1/completions",
        about: "Continues texts (OpenAI).",
        fields: &[completions::request::FIELDS, sampling::FIELDS],
        required: &["prompt"],
        example: r#"{"prompt": "def add(a, b):", "max_tokens": 16}"#,
        parts: &[],
    },
    Endpoint {
        method: "post",
        path: "/v1/responses",
        about: "Answers a conversation (OpenAI Responses).",
        fields: &[responses::request::FIELDS],
        required: &["input"],
        example: r#"{"input": "Say hello.", "max_output_tokens": 16}"#,
        parts: &[
            ("input[]", responses::input::ITEM),
            ("input[].content[]", responses::input::PART),
            ("tools[] of type function", responses::tools::FUNCTION),
            ("tools[] of type custom", responses::tools::CUSTOM),
            ("tools[] of type namespace", responses::tools::NAMESPACE),
            ("text.format", format::SCHEMA),
        ],
    },
    Endpoint {
        method: "post",
        path: "/v1/messages",
        about: "Answers a conversation (Anthropic Messages).",
        fields: &[messages::request::FIELDS],
        required: &["messages", "max_tokens"],
        example: r#"{"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}"#,
        parts: MESSAGES_PARTS,
    },
    Endpoint {
        method: "post",
        path: "/v1/messages/count_tokens",
        about: "Counts the tokens of a conversation. Takes the fields of `/v1/messages`; `max_tokens` may be absent.",
        fields: &[messages::request::FIELDS],
        required: &["messages"],
        example: r#"{"messages": [{"role": "user", "content": "Say hello."}]}"#,
        parts: MESSAGES_PARTS,
    },
    Endpoint {
        method: "post",
        path: "/tokenize",
        about: "Text to token ids.",
        fields: &[text::TOKENIZE_FIELDS],
        required: &["content"],
        example: r#"{"content": "def add(a, b):"}"#,
        parts: &[],
    },
    Endpoint {
        method: "post",
        path: "/detokenize",
        about: "Token ids to text.",
        fields: &[text::DETOKENIZE_FIELDS],
        required: &["tokens"],
        example: r#"{"tokens": [1, 2, 3]}"#,
        parts: &[],
    },
    Endpoint {
        method: "post",
        path: "/apply-template",
        about: "The text and tokens that the model would read. Takes the fields of `/v1/chat/completions`.",
        fields: &[chat::request::FIELDS, sampling::FIELDS],
        required: &["messages"],
        example: r#"{"messages": [{"role": "user", "content": "Say hello."}]}"#,
        parts: CHAT_PARTS,
    },
    get("/v1/models", "The loaded model, in a list."),
    get("/health", "200 when requests are served, else 503; the state in both. Asks for no key."),
    get("/slots", "Every agent."),
    get("/metrics", "Metrics for Prometheus."),
    get("/openapi.json", "This, for programs."),
];

/// What `docs/api.md` says.
#[must_use]
pub fn markdown() -> String {
    let mut out = INTRODUCTION.to_owned();
    for endpoint in ENDPOINTS {
        let Endpoint { method, path, about, fields, required, example, parts } = endpoint;
        out += &format!("\n## {} {path}\n\n{about}\n", method.to_uppercase());
        if !fields.is_empty() {
            out += &format!("\nFor example `{example}`\n");
            out += &table(fields, required);
        }
        for (place, fields) in *parts {
            out += &format!("\nWithin `{place}`:\n{}", table(&[fields], &[]));
        }
    }
    out
}

const INTRODUCTION: &str = "<!-- Written by the tests of openjetd (daemon/src/api/reference.rs): change it there. -->
# The HTTP API

Every field of every endpoint. *done*: it does what its API says. *harmless*: it is taken and changes nothing, because
nothing here depends on it. *refused*: it is answered with 400 that names it, unless it is null. A field that is in no
table is refused too. The same is at `/openapi.json` for programs.

Errors have the shape of the API that the request came by: `{\"error\": {\"message\", \"type\", \"param\", \"code\"}}` for
OpenAI's, `{\"type\": \"error\", \"error\": {\"type\", \"message\"}}` for Anthropic's. A conversation that does not fit is 400
before anything is sent, with both numbers. 503 comes with `Retry-After`. A request may have 100 headers and 64 KiB of them;
more is 431, and what is far more or is no HTTP at all is refused without a body. There are no embeddings: `/v1/embeddings` is
404 and says why.

Where keys are set, each request needs one: `Authorization: Bearer KEY` or `x-api-key: KEY`; only `/health` does not. The
header `X-Session-Id` keeps a conversation on its agent.
";

fn table(tables: &[&[Field]], required: &[&str]) -> String {
    let mut out = "\n| field | | |\n|---|---|---|\n".to_owned();
    for field in tables.iter().copied().flatten() {
        let support = match field.support {
            Support::Done => "done",
            Support::Harmless => "harmless",
            Support::Refused => "refused",
        };
        let must = if required.contains(&field.name) { ", must be there" } else { "" };
        out += &format!("| `{}` | {support}{must} | {} |\n", field.name, field.note);
    }
    out
}

/// The `OpenAPI` document, written once.
#[must_use]
pub fn openapi() -> &'static str {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());
    &DOCUMENT
}

fn document() -> Value {
    let mut paths = Map::new();
    for endpoint in ENDPOINTS {
        let responses = json!({
            "200": { "description": "The answer" },
            "4XX": { "description": "What is wrong with the request" },
            "503": { "description": "Not now; Retry-After says when to try again" },
        });
        let mut operation = json!({ "summary": endpoint.about, "responses": responses });
        if !endpoint.fields.is_empty() {
            let properties =
                endpoint.fields.iter().copied().flatten().filter(|field| field.support != Support::Refused);
            let properties: Map<String, Value> =
                properties.map(|field| (field.name.to_owned(), json!({ "description": field.note }))).collect();
            let schema = json!({
                "type": "object",
                "properties": properties,
                "required": endpoint.required,
                "additionalProperties": false,
            });
            // The examples are JSON: a test reads them.
            let example: Value = serde_json::from_str(endpoint.example).unwrap_or_default();
            let content = json!({ "application/json": { "schema": schema, "example": example } });
            operation["requestBody"] = json!({ "required": true, "content": content });
        }
        paths.insert(endpoint.path.to_owned(), json!({ endpoint.method: operation }));
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "OpenJet", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Run with `OPENJET_WRITE_DOCS=1` to write the file anew.
    #[test]
    fn the_documentation_is_what_the_tables_say() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/api.md");
        if std::env::var_os("OPENJET_WRITE_DOCS").is_some() {
            std::fs::write(&path, markdown()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap();
        assert!(
            written == markdown(),
            "docs/api.md is old: run `OPENJET_WRITE_DOCS=1 cargo test -p openjetd --lib reference`"
        );
    }

    #[test]
    fn required_fields_are_in_the_tables_and_none_is_twice() {
        for endpoint in ENDPOINTS {
            let mut names: Vec<&str> = endpoint.fields.iter().copied().flatten().map(|field| field.name).collect();
            assert!(endpoint.required.iter().all(|name| names.contains(name)), "{}", endpoint.path);
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "{}", endpoint.path);
        }
    }
}

//! The chat template against golden renderings, hostile templates, and users who type control tokens.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "support/vocabularies.rs"]
mod vocabularies;

use std::sync::LazyLock;

use openjet_engine::text::{Chat, ChatTemplate, ControlTokens, TemplateError, TokenKind, Tokenizer, TokenizerSpec};
use proptest::prelude::*;
use serde_json::{Value, json};

static TINY: LazyLock<Tokenizer> = LazyLock::new(vocabularies::tiny);

fn shipped() -> ChatTemplate {
    let file = vocabularies::tiny_file();
    ChatTemplate::new(TokenizerSpec::from_gguf(&file).unwrap().chat_template.unwrap(), &TINY).unwrap()
}

fn chat(messages: Value) -> Chat {
    let Value::Array(messages) = messages else { panic!("{messages}") };
    Chat { messages, add_generation_prompt: true, ..Chat::default() }
}

/// What `source` makes of one user message.
fn render(source: &str, content: &str) -> Result<String, TemplateError> {
    ChatTemplate::new(source, &TINY)?.text(&chat(json!([{"role": "user", "content": content}])))
}

#[test]
fn golden_renderings() {
    let golden: Value = serde_json::from_str(include_str!("fixtures/golden/template.json")).unwrap();
    let template = ChatTemplate::new(golden["template"].as_str().unwrap(), &TINY).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 12);
    for case in cases {
        let input = &case["input"];
        let chat = Chat {
            messages: input["messages"].as_array().unwrap().clone(),
            tools: input["tools"].as_array().cloned(),
            add_generation_prompt: input["add_generation_prompt"].as_bool().unwrap_or(false),
            enable_thinking: input["enable_thinking"].as_bool(),
            ..Chat::default()
        };
        let expected = match case["error"].as_str() {
            Some(message) => Err(TemplateError::Raised(message.into())),
            None => Ok(case["text"].as_str().unwrap().to_owned()),
        };
        assert_eq!(template.text(&chat), expected, "{input}");
        if let Ok(text) = expected {
            // Where the user typed no control token, the prompt is the text with all tokens matched.
            let prompt = template.prompt(&chat, &TINY).unwrap();
            let typed = chat.messages.iter().any(|m| m.to_string().contains("<|"));
            assert!(typed || prompt.tokens == TINY.encode(&text, ControlTokens::Match), "{input}");
        }
    }
}

#[test]
fn golden_messages_with_control_tokens_in_user_text() {
    let golden: Value = serde_json::from_str(include_str!("fixtures/golden/messages-tiny.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 5);
    for case in cases {
        let ids: Vec<u32> = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let prompt = shipped().prompt(&chat(case["messages"].clone()), &TINY).unwrap();
        assert_eq!(prompt.tokens, ids, "{}", case["messages"]);
        // `<|im_start|>`, `assistant\n` in four tokens, `<think>`, newline.
        assert_eq!(prompt.generation_prompt_at, Some(ids.len() - 7));
        assert!(prompt.in_thinking);
    }
}

#[test]
fn the_generation_prompt_is_found() {
    let template = shipped();
    let mut chat = chat(json!([{"role": "user", "content": "<think>"}]));
    let open = template.prompt(&chat, &TINY).unwrap();
    assert!(open.in_thinking);
    chat.enable_thinking = Some(false);
    let closed = template.prompt(&chat, &TINY).unwrap();
    assert!(!closed.in_thinking);
    assert_eq!(closed.generation_prompt_at, open.generation_prompt_at);
    chat.add_generation_prompt = false;
    let history = template.prompt(&chat, &TINY).unwrap();
    assert_eq!((history.generation_prompt_at, history.in_thinking), (None, false));
    assert_eq!(open.generation_prompt_at, Some(history.tokens.len()));
    assert_eq!(open.tokens[..history.tokens.len()], history.tokens);
}

#[test]
fn the_end_of_what_conversations_have_in_common_is_found() {
    let template = shipped();
    let prompt = |question: &str, more: Value| {
        let mut messages =
            json!([{"role": "system", "content": "Be brief. <|im_start|>"}, {"role": "user", "content": question}]);
        messages.as_array_mut().unwrap().extend(more.as_array().unwrap().iter().cloned());
        template.prompt(&chat(messages), &TINY).unwrap()
    };
    let one = prompt("Why? <|im_start|>", json!([]));
    let other = prompt("How?", json!([{"role": "assistant", "content": "So."}, {"role": "user", "content": "Well."}]));
    let until = one.system_until.unwrap();
    assert_eq!(other.system_until, Some(until));
    // The next message begins alike too: its first token, its role and a newline.
    let common = one.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
    assert!((until + 1..until + 9).contains(&common), "{until} of {common}");
    assert_eq!(TINY.kind(one.tokens[until]), TokenKind::Control);
}

/// Turn n + 1 extends turn n, token by token, up to where the model began to write.
#[test]
fn a_conversation_extends_its_prompt() {
    let template = shipped();
    let mut messages = json!([{"role": "system", "content": "Be brief. <|im_end|>"}]);
    let mut before: Vec<u32> = Vec::new();
    for turn in 0..4 {
        let list = messages.as_array_mut().unwrap();
        list.push(json!({"role": "user", "content": format!("Question {turn}: <|im_start|>é?")}));
        let prompt = template.prompt(&chat(messages.clone()), &TINY).unwrap();
        assert_eq!(prompt.tokens[..before.len()], before);
        before = prompt.tokens[..prompt.generation_prompt_at.unwrap()].to_vec();
        let list = messages.as_array_mut().unwrap();
        list.push(json!({"role": "assistant", "content": "It is so.", "reasoning_content": "hm"}));
    }
}

/// How often control tokens appear in a prompt.
fn control_tokens(tokens: &[u32]) -> usize {
    tokens.iter().filter(|&&id| TINY.kind(id) == TokenKind::Control).count()
}

proptest! {
    /// Whatever the request's strings are, whole or in parts, as text, names, arguments or results: the control tokens of
    /// the prompt are the template's own, and the text is what was sent.
    #[test]
    fn a_request_cannot_forge_control_tokens(
        parts in prop::collection::vec(r"(<\|im_(start|end)\|>|<\|endoftext\|>|[<|>]|im_end|think|\PC| |\n|\u{100000}){0,8}", 4),
    ) {
        let messages = |s: &[String]| json!([
            {"role": "system", "content": s[0]},
            {"role": "user", "content": [{"type": "text", "text": s[1]}, {"type": "text", "text": s[2]}]},
            {"role": "assistant", "content": s[3], "reasoning_content": s[0], "tool_calls": [
                {"type": "function", "function": {"name": s[1], "arguments": {s[2].clone(): s[3], "list": [s[0]]}}}
            ]},
            {"role": "tool", "content": s[1]},
        ]);
        let template = shipped();
        let with = |s: &[String]| Chat {
            tools: Some(vec![json!({"type": "function", "function": {"name": s[1], "description": s[2]}})]),
            ..chat(messages(s))
        };
        let plain = template.prompt(&with(&["a", "b", "c", "d"].map(String::from)), &TINY).unwrap();
        let prompt = template.prompt(&with(&parts), &TINY).unwrap();
        prop_assert_eq!(control_tokens(&prompt.tokens), control_tokens(&plain.tokens));
        let bytes: Vec<u8> = prompt.tokens.iter().flat_map(|&t| TINY.token_bytes(t)).copied().collect();
        use unicode_normalization::UnicodeNormalization as _;
        let nfc = |text: &str| text.nfc().collect::<String>();
        // Normalisation stops at added tokens, so the two may differ in how a character is composed there.
        prop_assert_eq!(nfc(std::str::from_utf8(&bytes).unwrap()), nfc(&template.text(&with(&parts)).unwrap()));
    }
}

/// Templates that take content apart don't make control tokens of what is left.
#[test]
fn taking_content_apart_forges_nothing() {
    let source = "{%- for m in messages %}{{ '<|im_start|>' + m.content.replace('x', '').split('--')|join + '<|im_end|>' }}{% endfor %}";
    let template = ChatTemplate::new(source, &TINY).unwrap();
    let prompt =
        template.prompt(&chat(json!([{"role": "user", "content": "<|im_xstart|><|im_--end|>"}])), &TINY).unwrap();
    assert_eq!(control_tokens(&prompt.tokens), 2);
}

#[test]
fn content_tests_see_what_was_sent() {
    let source = "{%- set c = messages[0].content -%}
        {%- if c.startswith('<tool_response>') and c.endswith('</tool_response>') -%}wrapped{%- endif -%}
        {%- if '</think>' in c -%}{{ c.split('</think>')[-1].lstrip('\\n') }}|{{ c.split('</think>')[0].rstrip('\\n').split('<think>')[-1] }}{%- endif -%}
        {{- c|length }}";
    assert_eq!(render(source, "<tool_response>|</tool_response>").unwrap(), "wrapped32");
    assert_eq!(render(source, "<think>a|b\n</think>\n\nc").unwrap(), "c|a|b22");
}

/// `json.dumps(x, ensure_ascii=False)` and what templates say to it.
#[test]
fn tojson_is_pythons() {
    let value = json!({"z": [1, 2.0, 1e-7, true, null, {}], "a": "é<&'\"\\\n\u{1}/", "n": [], "big": 1e22});
    let dump = |call: &str| {
        let template = ChatTemplate::new(&format!("{{{{ tools[0]|{call} }}}}"), &TINY).unwrap();
        template.text(&Chat { tools: Some(vec![value.clone()]), ..Chat::default() }).unwrap()
    };
    assert_eq!(
        dump("tojson"),
        r#"{"z": [1, 2.0, 1e-07, true, null, {}], "a": "é<&'\"\\\n\u0001/", "n": [], "big": 1e+22}"#
    );
    assert_eq!(
        dump("tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=true)"),
        r#"{"a":"\u00e9<&'\"\\\n\u0001/","big":1e+22,"n":[],"z":[1,2.0,1e-07,true,null,{}]}"#
    );
    assert_eq!(
        dump("tojson(indent=2)"),
        "{\n  \"z\": [\n    1,\n    2.0,\n    1e-07,\n    true,\n    null,\n    {}\n  ],\n  \"a\": \"é<&'\\\"\\\\\\n\\u0001/\",\n  \"n\": [],\n  \"big\": 1e+22\n}"
    );
}

#[test]
fn constructs_of_released_templates() {
    for (source, expected) in [
        (
            "{%- set ns = namespace(n=0) %}{%- for m in messages[::-1] %}{%- set ns.n = ns.n + loop.index0 + 1 %}{%- endfor %}{{ ns.n }}",
            "1",
        ),
        (
            "{%- for i in range(9) %}{%- if i == 1 %}{%- continue %}{%- endif %}{%- if i == 3 %}{%- break %}{%- endif %}{{ i }}{%- endfor %}",
            "02",
        ),
        (
            "{%- for k, v in {'a': 1, 'b': none}|items %}{{ k ~ v|string }}{% endfor %}{% for k, v in {'c': true}.items() %}{{ (k, v) }}{% endfor %}",
            "a1bNone('c', True)",
        ),
        ("{% if true %}\n  x\n  {% endif %}\ny\n", "  x\ny"),
        (
            "{{ missing }}{{ messages[0].nothing }}{{ missing is defined }}{{ missing is undefined }}{{ none is none }}",
            "FalseTrueTrue",
        ),
        ("{{ 'a' in ('a', 'b') }}{{ 'z' not in ['a'] }}{{ (missing|default('d')) }}{{ 1 if false }}", "TrueTrued"),
        (
            "{% macro f(x, y=false) %}[{{ x }}{{ y }}]{% endmacro %}{{ f('a')|trim }}{{ f('b', true) }}",
            "[aFalse][bTrue]",
        ),
        (
            "{{ messages is iterable and messages is not mapping }}{{ messages[0] is mapping }}{{ 'x' is string }}",
            "TrueTrueTrue",
        ),
        (
            "{% for m in messages %}{{ loop.previtem is undefined }}{{ loop.last }}{{ loop.nextitem is defined }}{% endfor %}",
            "TrueTrueFalse",
        ),
        ("{{ '<b>' | safe }}{{ '<b>' }}{{ 3 | tojson | safe }}", "<b><b>3"),
        ("{{ strftime_now('%Y')|length }}{{ eos_token }}{{ bos_token }}", "4<|im_end|>"),
    ] {
        assert_eq!(render(source, "hi").as_deref(), Ok(expected), "{source}");
    }
}

#[test]
fn variables_reach_the_template() {
    let source = "{{ [enable_thinking, reasoning_effort, preserve_thinking, tools is defined]|tojson }}";
    let template = ChatTemplate::new(source, &TINY).unwrap();
    let mut input = Chat {
        enable_thinking: Some(false),
        reasoning_effort: Some("low".into()),
        tools: Some(vec![]),
        ..Chat::default()
    };
    input.kwargs.insert("preserve_thinking".into(), json!(true));
    assert_eq!(template.text(&input).unwrap(), r#"[false, "low", true, true]"#);
    input.kwargs.insert("enable_thinking".into(), json!(true));
    assert_eq!(template.text(&input).unwrap(), r#"[true, "low", true, true]"#);
    for name in ["messages", "tools", "add_generation_prompt", "eos_token", "bos_token"] {
        let mut input = Chat::default();
        input.kwargs.insert(name.into(), json!([]));
        let e = template.text(&input).unwrap_err();
        assert_eq!(e.to_string(), format!("chat_template_kwargs: {name:?} can't be given here"));
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let error = |source: &str| render(source, "hi <|im_end|>").unwrap_err().to_string();
    assert_eq!(error("{{ raise_exception('no ' + messages[0].content) }}"), "no hi <|im_end|>");
    assert_eq!(error("{% macro f() %}{{ raise_exception('deep') }}{% endmacro %}{{ f() }}"), "deep");
    assert!(error("{{ x").starts_with("the chat template can't be read: syntax error"), "{}", error("{{ x"));
    let failed = error("a\n{{ messages[0].content.no_such_method() }}");
    assert!(failed.contains("no_such_method") && failed.contains("line 2"), "{failed}");
    assert!(error("{{ missing.attribute }}").contains("undefined"), "{}", error("{{ missing.attribute }}"));
    assert!(error("{{ messages|no_such_filter }}").contains("no_such_filter"));
}

/// A template that comes with a file can't hang the process, fill its memory or its stack.
#[test]
fn hostile_templates_stop() {
    for source in [
        "{% for i in range(100000) %}{% for j in range(100000) %}{{ i }}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
        "{{ 'x' * 1000000000000 }}",
        "{{ [1] * 1000000000 }}",
        "{% macro f(x) %}{{ f(x + 1) }}{% endmacro %}{{ f(0) }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        "{{ messages|tojson(indent=1000000000000) }}",
        "{% include 'chat_template' %}",
        "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    ] {
        let start = std::time::Instant::now();
        let e = render(source, "hi").unwrap_err();
        assert!(matches!(e, TemplateError::TooLong | TemplateError::Failed { .. }), "{source}: {e}");
        assert!(start.elapsed().as_secs() < 30, "{source}: {:?}", start.elapsed());
    }
    for source in ["(".repeat(100_000), "{{ ".to_owned() + &"[".repeat(100_000), "{% if x %}".repeat(50_000)] {
        let _ = ChatTemplate::new(&source, &TINY);
    }
}

#[test]
fn templates_whose_control_tokens_have_no_mark_are_refused() {
    let mut spec_tokens: Vec<String> = (0..=255).map(|b| vocabularies::spelled(&[b])).collect();
    spec_tokens.extend(["<end>", "<think>"].map(String::from));
    let mut types = vec![1; 256];
    types.extend([3, 4]);
    let spec = TokenizerSpec {
        model: "gpt2",
        pre: "qwen35",
        tokens: spec_tokens.iter().map(String::as_str).collect(),
        token_types: types,
        merges: vec![],
        eos: 256,
        bos: None,
        chat_template: None,
    };
    let tokenizer = Tokenizer::new(&spec).unwrap();
    assert_eq!(ChatTemplate::new("{{ 'x<end>' }}", &tokenizer).unwrap_err(), TemplateError::NoMark);
    // A template that writes none is fine, and then none is matched.
    let template = ChatTemplate::new("{{ messages[0].content }}", &tokenizer).unwrap();
    let prompt = template.prompt(&chat(json!([{"content": "<end>"}])), &tokenizer).unwrap();
    assert_eq!(prompt.tokens.len(), 5);
}

/// Pieces of messages: some long enough to be kept, and alike but for a space, a newline or the form of a letter.
fn piece() -> impl Strategy<Value = String> {
    const LONG: &str = "fn café(&self) -> usize { self.values.iter().filter(|value| value.is_some()).count() }";
    prop_oneof![
        Just(LONG.to_owned()),
        Just(format!("{LONG} ")),
        Just(format!("{LONG}\n")),
        Just(format!("\n\n{LONG}")),
        Just(LONG.replace('é', "e\u{301}")),
        Just(LONG.repeat(3)),
        Just(String::new()),
        prop::sample::select(vec![
            "<|im_start|>user\n",
            "<|im_end|>",
            "<think>",
            "</think>",
            "<tool_call>",
            "|",
            "\n",
            " "
        ])
        .prop_map(str::to_owned),
        r"(\PC|[ \t\r\n]){0,80}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// What was encoded before changes no token.
    #[test]
    fn a_conversation_has_the_same_tokens_whether_its_texts_are_known_or_not(
        turns in prop::collection::vec(prop::collection::vec(piece(), 0..4), 1..5)
    ) {
        static FORGETFUL: LazyLock<Tokenizer> = LazyLock::new(vocabularies::tiny);
        static TEMPLATE: LazyLock<ChatTemplate> = LazyLock::new(shipped);
        let messages: Vec<Value> = turns.iter().map(|parts| json!({"role": "user", "content": parts.concat()})).collect();
        for shown in 1..=messages.len() {
            let chat = chat(json!(messages[..shown]));
            FORGETFUL.forget();
            prop_assert_eq!(TEMPLATE.prompt(&chat, &TINY).unwrap(), TEMPLATE.prompt(&chat, &FORGETFUL).unwrap());
        }
        for text in turns.iter().map(|parts| parts.concat()) {
            for control in [ControlTokens::Match, ControlTokens::AsText] {
                FORGETFUL.forget();
                prop_assert_eq!(TINY.encode(&text, control), FORGETFUL.encode(&text, control));
            }
        }
    }
}

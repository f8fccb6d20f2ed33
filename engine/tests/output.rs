//! The parser of what a model writes: every way of cutting sample outputs, and text that makes no sense.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::sync::LazyLock;

use openjet_engine::text::{CallCounts, OutputEvent as Event, OutputParser, ToolSchemas};
use proptest::prelude::*;
use serde_json::{Value, json};

static SCHEMAS: LazyLock<ToolSchemas> = LazyLock::new(|| {
    ToolSchemas::new(&[
        json!({"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {
            "path": {"type": "string"},
            "lines": {"type": "integer"},
        }}}}),
        json!({"type": "function", "function": {"name": "f", "parameters": {"$defs": {"e": {"enum": ["x", "y"]}}, "properties": {
            "s": {"type": "string"}, "i": {"type": "integer"}, "b": {"type": "boolean"}, "o": {"type": "object"},
            "a": {"type": "array"}, "any": {"description": "?"}, "sn": {"type": ["string", "null"]},
            "sa": {"anyOf": [{"type": "string"}, {"type": "array"}]}, "e": {"$ref": "#/$defs/e"}, "n": {"type": "null"},
            "si": {"type": ["string", "integer"]},
        }}}}),
    ])
});

/// What the parser says to a text that comes in these pieces, neighbouring events of a kind joined.
fn parse<'a>(in_thinking: bool, pieces: impl IntoIterator<Item = &'a str>) -> (Vec<Event>, CallCounts) {
    let mut parser = OutputParser::new(in_thinking, SCHEMAS.clone(), true);
    let mut events: Vec<Event> = Vec::new();
    for piece in pieces {
        events.extend(parser.push(piece));
    }
    events.extend(parser.finish());
    let mut joined: Vec<Event> = Vec::new();
    for event in events {
        match (joined.last_mut(), &event) {
            (Some(Event::Reasoning(a)), Event::Reasoning(b)) | (Some(Event::Content(a)), Event::Content(b)) => {
                a.push_str(b);
            }
            (
                Some(Event::ToolCallArguments { index, fragment }),
                Event::ToolCallArguments { index: same, fragment: more },
            ) if index == same => fragment.push_str(more),
            _ => joined.push(event),
        }
    }
    (joined, parser.counts())
}

fn reasoning(text: &str) -> Event {
    Event::Reasoning(text.into())
}

fn content(text: &str) -> Event {
    Event::Content(text.into())
}

/// A whole call.
fn call(index: usize, name: &str, arguments: &str) -> [Event; 3] {
    [
        Event::ToolCallStart { index, name: name.into() },
        Event::ToolCallArguments { index, fragment: arguments.into() },
        Event::ToolCallEnd { index },
    ]
}

const READ: &str = "<tool_call>\n<function=read>\n<parameter=path>\na b.py\n</parameter>\n<parameter=lines>\n20\n</parameter>\n</function>\n</tool_call>";
const READ_ARGUMENTS: &str = r#"{"path": "a b.py", "lines": 20}"#;

/// An output, whether it starts in thinking, its events, and how many calls are whole and broken.
type Sample = (bool, String, Vec<Event>, (usize, usize));

fn samples() -> Vec<Sample> {
    let [start, arguments, end] = call(0, "read", READ_ARGUMENTS);
    let [start1, arguments1, end1] = call(1, "read", READ_ARGUMENTS);
    let calls = vec![start.clone(), arguments.clone(), end.clone()];
    let before = |event: Event| [vec![event], calls.clone()].concat();
    vec![
        (true, "Let me see.\n</think>\n\nYes <b> it is\n".into(), vec![reasoning("Let me see."), content("Yes <b> it is\n")], (0, 0)),
        (false, " Hello\n\n world".into(), vec![content(" Hello\n\n world")], (0, 0)),
        (false, "<think>\nhm\n</think>\n\n日本".into(), vec![reasoning("hm"), content("日本")], (0, 0)),
        (true, "<think>\nagain\n</think>x".into(), vec![reasoning("again"), content("x")], (0, 0)),
        (true, "cut of".into(), vec![reasoning("cut of")], (0, 0)),
        (true, "\n\n</think>\n\n".into(), vec![], (0, 0)),
        (true, format!("I'll look.\n</think>\n\n{READ}"), before(reasoning("I'll look.")), (1, 0)),
        // Text before the call, no newlines at all.
        (true, format!("I'll do it.</think>{READ}"), before(reasoning("I'll do it.")), (1, 0)),
        (false, format!("Sure.\n\n{READ}\n"), before(content("Sure.")), (1, 0)),
        // A call before the reasoning is closed.
        (true, format!("I need the file. {READ}"), before(reasoning("I need the file.")), (1, 0)),
        (
            true,
            format!("Two.\n</think>\n\n{READ}\n{READ}\nDone."),
            vec![
                reasoning("Two."),
                start.clone(),
                arguments.clone(),
                end.clone(),
                start1,
                arguments1,
                end1,
                content("Done."),
            ],
            (2, 0),
        ),
        (false, "<tool_call><function=g></function></tool_call>".into(), call(0, "g", "{}").into(), (1, 0)),
        // The inner end is forgotten; the outer one is.
        (false, READ.replace("\n</function>", ""), calls.clone(), (1, 0)),
        (false, READ.replace("\n</tool_call>", ""), calls.clone(), (1, 0)),
        (
            false,
            "<tool_call>\n<function=read>\n<parameter=path>\n\n  \"é\\\n</para\n\t</function>\n\n</parameter>\n</function>\n</tool_call>".into(),
            call(0, "read", r#"{"path": "\n  \"é\\\n</para\n\t</function>\n"}"#).into(),
            (1, 0),
        ),
        // No call after the marker: text of the section that it is in, without markers.
        (true, "The <tool_call> form, so <x>.\n</think>\nOK".into(), vec![reasoning("The  form, so <x>."), content("OK")], (0, 1)),
        (false, "<tool_call>\n{\"name\": \"f\"}\n</tool_call>".into(), vec![content("\n{\"name\": \"f\"}\n")], (0, 1)),
        (false, "a</think> b</tool_call> c".into(), vec![content("a b c")], (0, 0)),
        (false, "<function=f> < <t <too <tool_ca".into(), vec![content("<function=f> < <t <too <tool_ca")], (0, 0)),
        // Truncated in a call.
        (false, "x\n<tool_call>\n<funct".into(), vec![content("x\n\n<funct")], (0, 1)),
        (
            false,
            "<tool_call>\n<function=read>\n<parameter=path>\na b".into(),
            vec![
                start.clone(),
                Event::ToolCallArguments { index: 0, fragment: "{\"path\": \"a b".into() },
                Event::ToolCallBroken { index: 0 },
                content("<function=read>\n<parameter=path>\na b"),
            ],
            (0, 1),
        ),
        // Text where a parameter should be.
        (
            false,
            "<tool_call>\n<function=read>\nhm</function>\n</tool_call>".into(),
            vec![start.clone(), Event::ToolCallBroken { index: 0 }, content("<function=read>\nhm</function>\n")],
            (0, 1),
        ),
        (
            false,
            "<tool_call>\n<function=read>\n<parameter=path>\nx <think> y\n</parameter>\n<b>".into(),
            vec![
                start,
                Event::ToolCallArguments { index: 0, fragment: "{\"path\": \"x <think> y\"".into() },
                Event::ToolCallBroken { index: 0 },
                content("<function=read>\n<parameter=path>\nx  y\n</parameter>\n<b>"),
            ],
            (0, 1),
        ),
    ]
}

#[test]
fn outputs_are_taken_apart_however_they_are_cut() {
    for (in_thinking, text, expected, (whole, broken)) in samples() {
        let counts = CallCounts { whole, broken };
        assert_eq!(parse(in_thinking, [text.as_str()]), (expected.clone(), counts), "{text:?}");
        let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for &a in &cuts {
            for &b in cuts.iter().filter(|&&b| b >= a) {
                let pieces = [&text[..a], &text[a..b], &text[b..]];
                assert_eq!(parse(in_thinking, pieces), (expected.clone(), counts), "{pieces:?}");
            }
        }
        let characters = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
        assert_eq!(parse(in_thinking, characters), (expected, counts), "{text:?}");
    }
}

/// What an output comes down to.
#[derive(Debug, Default, PartialEq, serde::Deserialize)]
struct Outcome {
    #[serde(skip_deserializing)]
    open: Option<(String, String)>,
    reasoning: String,
    content: String,
    /// Names, and arguments as they are written.
    calls: Vec<(String, String)>,
    broken: usize,
}

impl Outcome {
    fn of<'a>(thinking: bool, pieces: impl IntoIterator<Item = &'a str>) -> Self {
        let (events, counts) = parse(thinking, pieces);
        let mut out = Self { broken: counts.broken, ..Self::default() };
        for event in events {
            match event {
                Event::Reasoning(text) => out.reasoning += &text,
                Event::Content(text) => out.content += &text,
                Event::ToolCallStart { name, .. } => out.open = Some((name, String::new())),
                Event::ToolCallArguments { fragment, .. } => out.open.as_mut().unwrap().1 += &fragment,
                Event::ToolCallEnd { .. } => out.calls.push(out.open.take().unwrap()),
                Event::ToolCallBroken { .. } => out.open = None,
            }
        }
        assert_eq!(out.calls.len(), counts.whole);
        out
    }
}

/// More outputs, each with what it comes down to, in a file: `thinking` is whether it starts there.
#[test]
fn outputs_of_all_kinds_come_down_to_the_same_however_they_are_cut() {
    #[derive(serde::Deserialize)]
    struct Written {
        about: String,
        thinking: bool,
        text: String,
        #[serde(flatten)]
        outcome: Outcome,
    }
    let written: Vec<Written> = serde_json::from_str(include_str!("fixtures/outputs.json")).unwrap();
    assert!(written.len() + samples().len() >= 50);
    for Written { about, thinking, text, outcome } in written {
        assert_eq!(Outcome::of(thinking, [text.as_str()]), outcome, "{about}");
        for (_, arguments) in &outcome.calls {
            assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object(), "{about}");
        }
        let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for (i, &a) in cuts.iter().enumerate() {
            for &b in &cuts[i..] {
                let pieces = [&text[..a], &text[a..b], &text[b..]];
                assert_eq!(Outcome::of(thinking, pieces), outcome, "{about}: {pieces:?}");
            }
        }
    }
}

/// vllm issue 39056: a call before the end of the thinking was lost.
#[test]
fn vllm_39056_a_call_within_the_thinking_is_a_call() {
    let (events, counts) = parse(true, [format!("I need the file.\n{READ}").as_str()]);
    assert_eq!(events, [vec![reasoning("I need the file.")], call(0, "read", READ_ARGUMENTS).into()].concat());
    assert_eq!(counts, CallCounts { whole: 1, broken: 0 });
}

/// LM Studio issue 1071, club-3090 issue 145: the family's XML came out as text.
#[test]
fn lm_studio_1071_xml_is_a_call() {
    let (events, _) = parse(false, READ.split_inclusive('>'));
    assert_eq!(events, call(0, "read", READ_ARGUMENTS));
}

/// llama.cpp issues 20260 and 21118, ollama issues 14745 and 14493: text before a call, or an end of the thinking without a
/// newline, and the call was printed.
#[test]
fn llama_cpp_20260_text_before_a_call_changes_nothing() {
    for (in_thinking, before, first) in [
        (true, "I'll do it.</think>", reasoning("I'll do it.")),
        (true, "I'll do it.\n</think>\n\n", reasoning("I'll do it.")),
        (false, "I'll do it. ", content("I'll do it.")),
    ] {
        let text = format!("{before}{READ}");
        assert_eq!(
            parse(in_thinking, [text.as_str()]).0,
            [vec![first], call(0, "read", READ_ARGUMENTS).into()].concat()
        );
    }
}

#[test]
fn text_arguments_are_streamed() {
    let mut parser = OutputParser::new(false, SCHEMAS.clone(), true);
    parser.push("<tool_call>\n<function=read>\n<parameter=path>\n");
    for word in ["one ", "two\n", "three "] {
        let events = parser.push(word);
        assert!(matches!(&events[..], [Event::ToolCallArguments { .. }]), "{word:?}: {events:?}");
    }
}

#[test]
fn values_have_the_type_of_the_schema() {
    let convert = |key: &str, value: &str| {
        let text =
            format!("<tool_call>\n<function=f>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>");
        let (events, _) = parse(false, [text.as_str()]);
        let Event::ToolCallArguments { fragment, .. } = &events[1] else { panic!("{events:?}") };
        let arguments: Value = serde_json::from_str(fragment).unwrap();
        arguments[key].clone()
    };
    for (key, value, expected) in [
        ("s", "5", json!("5")),
        ("s", "true", json!("true")),
        ("s", "{\"a\": 1}", json!("{\"a\": 1}")),
        ("s", "  two\n\nlines ", json!("  two\n\nlines ")),
        ("i", "5", json!(5)),
        ("i", " -7 ", json!(-7)),
        ("i", "five", json!("five")),
        ("i", "true", json!("true")),
        ("b", "true", json!(true)),
        ("b", "False", json!(false)),
        ("n", "None", json!(null)),
        ("o", "{\"k\": [1, \"二\"]}", json!({"k": [1, "二"]})),
        ("o", "[1]", json!("[1]")),
        ("o", "{\"k\": ", json!("{\"k\": ")),
        ("a", "[1, 2.5]", json!([1, 2.5])),
        ("any", "5", json!(5)),
        ("any", "[null]", json!([null])),
        ("any", "word", json!("word")),
        ("any", "\"quoted\"", json!("\"quoted\"")),
        ("sn", "null", json!(null)),
        ("sn", "5", json!("5")),
        ("sa", "[\"x\"]", json!(["x"])),
        ("sa", "x", json!("x")),
        ("si", "5", json!("5")),
        ("e", "x", json!("x")),
        ("unknown", "5", json!("5")),
    ] {
        assert_eq!(convert(key, value), expected, "{key}: {value:?}");
    }
}

#[test]
fn without_calls_their_text_is_content() {
    let mut parser = OutputParser::new(false, ToolSchemas::default(), false);
    let mut events = parser.push(&format!("a {READ} b"));
    events.extend(parser.finish());
    let text: String =
        events.iter().map(|e| if let Event::Content(t) = e { t.as_str() } else { panic!("{e:?}") }).collect();
    assert_eq!(text, format!("a {} b", READ.replace("<tool_call>", "").replace("</tool_call>", "")));
    assert_eq!(parser.counts(), CallCounts::default());
}

proptest! {
    /// Any mixture of fragments, cut anywhere: the events don't depend on the cuts, no marker is printed, and a call that
    /// ended has arguments that are a JSON object.
    #[test]
    fn any_text_is_parsed_alike_and_safely(
        in_thinking: bool,
        text in r"(<think>|</think>|<tool_call>\n?|</tool_call>|<function=(read|f)>\n?|</function>\n?|<parameter=(path|a|i)>\n?|\n?</parameter>\n?|[<>/a\n ]|\PC){0,24}",
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let whole = parse(in_thinking, [text.as_str()]);
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| *cut.get(&places)).chain([0, text.len()]).collect();
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|w| &text[w[0]..w[1]]);
        prop_assert_eq!(&parse(in_thinking, pieces), &whole);

        let mut arguments = std::collections::BTreeMap::<usize, String>::new();
        let mut ended = 0;
        for event in &whole.0 {
            match event {
                Event::Reasoning(t) | Event::Content(t) => {
                    for marker in ["<think>", "</think>", "<tool_call>", "</tool_call>"] {
                        // A marker that only forms when another one between its parts is taken out is not one.
                        prop_assert!(!t.contains(marker) || !text.contains(t.as_str()), "{:?}", t);
                    }
                }
                Event::ToolCallArguments { index, fragment } => arguments.entry(*index).or_default().push_str(fragment),
                Event::ToolCallEnd { index } => {
                    let parsed: Value = serde_json::from_str(&arguments[index]).unwrap();
                    prop_assert!(parsed.is_object());
                    ended += 1;
                }
                Event::ToolCallStart { .. } | Event::ToolCallBroken { .. } => {}
            }
        }
        prop_assert_eq!(ended, whole.1.whole);
    }
}

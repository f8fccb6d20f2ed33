//! Any text through the parser of what models write: cut anywhere it is the same, and whole calls have JSON for arguments.
#![no_main]

use libfuzzer_sys::fuzz_target;
use openjet_engine::text::{OutputEvent, OutputParser, ToolSchemas};

/// The arguments of each call that came to an end, and everything else that was said.
fn parse(in_thinking: bool, pieces: &[&str]) -> (Vec<String>, String, String) {
    let mut parser = OutputParser::new(in_thinking, ToolSchemas::default(), true);
    let mut events: Vec<OutputEvent> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    let (mut calls, mut open, mut reasoning, mut content) = (Vec::new(), String::new(), String::new(), String::new());
    for event in events {
        match event {
            OutputEvent::Reasoning(text) => reasoning += &text,
            OutputEvent::Content(text) => content += &text,
            OutputEvent::ToolCallStart { .. } => open.clear(),
            OutputEvent::ToolCallArguments { fragment, .. } => open += &fragment,
            OutputEvent::ToolCallEnd { .. } => calls.push(std::mem::take(&mut open)),
            OutputEvent::ToolCallBroken { .. } => {}
        }
    }
    (calls, reasoning, content)
}

fuzz_target!(|input: (bool, usize, &str)| {
    let (in_thinking, cut, text) = input;
    let whole = parse(in_thinking, &[text]);
    for arguments in &whole.0 {
        assert!(serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(arguments).is_ok(), "{arguments:?}");
    }
    let cut = text.char_indices().map(|(at, _)| at).nth(cut % text.len().max(1)).unwrap_or(text.len());
    assert_eq!(parse(in_thinking, &[&text[..cut], &text[cut..]]), whole, "cut at {cut}");
});

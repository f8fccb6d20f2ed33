//! The page: what each agent does, live.

use leptos::prelude::*;

fn main() {
    mount_to_body(|| view! { <h1>"OpenJet"</h1> });
}

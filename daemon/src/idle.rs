//! Unloads a model that nobody uses.

use std::sync::Arc;
use std::time::Duration;

use crate::app::App;
use crate::phase::Phase;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// Unloads the model whenever it has been unused for the setting `idle_unload_s`; never returns.
pub async fn watch(app: Arc<App>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(idle) = app.config().idle_unload_s else { continue };
        let Phase::Ready(serving) = &*app.phase() else { continue };
        if serving.requests.none_for() < Duration::from_secs(idle) {
            continue;
        }
        tracing::info!("no request for {idle} s: unloading the model");
        if let Err(refused) = app.change.unload(&app, true).await {
            tracing::debug!("not unloaded: {refused}");
        }
    }
}

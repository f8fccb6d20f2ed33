//! Why a verb failed, and the exit status that says so.

use std::fmt;
use std::process::ExitCode;

/// A failed verb.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was tried and did not work.
    Failed(anyhow::Error),
    /// Nobody answers on the control socket.
    Unreachable(anyhow::Error),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Failed(_) => ExitCode::from(1),
            Self::Unreachable(_) => ExitCode::from(3),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Failed(error) | Self::Unreachable(error)) = self;
        write!(f, "{error:#}")
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

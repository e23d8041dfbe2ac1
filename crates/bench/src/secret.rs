//! Text that must not be shown.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A password, from the command line to CONNECT.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl From<String> for Secret {
    fn from(text: String) -> Secret {
        Secret(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_in_debug_output() {
        assert_eq!(format!("{:?}", Secret::from("hunter2".to_owned())), "***");
    }
}

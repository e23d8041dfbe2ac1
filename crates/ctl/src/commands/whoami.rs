//! `meridian ctl whoami`.

use clap::Args;

use super::Command;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::query::Query;

/// Show the API key and the role of this token
#[derive(Args, Debug)]
pub struct WhoamiArgs {}

impl Command for WhoamiArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let who = console.client.get("/api/v1/whoami", &Query::new())?;
        let sentence = match who.truth("open") {
            true => format!(
                "{}: the node has no API key yet, so every client that reaches it has this role",
                who.cell("role")
            ),
            false => format!("{} ({})", who.cell("name"), who.cell("role")),
        };
        console.done(&who, &sentence)
    }
}

//! Scripts with which shells complete the command line.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::{Shell, generate};

use crate::failure::Failure;

/// Write a script with which a shell completes `meridian` commands and flags
#[derive(Args, Clone, Copy, Debug)]
#[command(after_help = "\
Examples:
  meridian completions bash > ~/.local/share/bash-completion/completions/meridian
  meridian completions zsh  > ~/.zfunc/_meridian       (with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc)
  meridian completions fish > ~/.config/fish/completions/meridian.fish")]
pub struct CompletionsArgs {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

impl CompletionsArgs {
    /// Writes the script. `command` is the whole command line.
    pub fn run(self, command: Command) -> ExitCode {
        match std::io::stdout().lock().write_all(&self.script(command)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => Failure::Output(error).report("completions", false, &mut std::io::stderr()),
        }
    }

    fn script(self, mut command: Command) -> Vec<u8> {
        let name = command.get_name().to_owned();
        let mut script = Vec::new();
        generate(self.shell, &mut command, name, &mut script);
        script
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn every_shell_learns_the_commands() {
        let command = || crate::CtlArgs::augment_args(Command::new("meridian"));
        for &shell in Shell::value_variants() {
            let script = String::from_utf8(CompletionsArgs { shell }.script(command())).unwrap();
            assert!(script.contains("topic-metrics") && script.contains("token-file"), "{shell}");
        }
    }
}

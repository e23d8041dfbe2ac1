//! `meridian acl check`: what the access rules say to one question, and which line of the file says it.

use std::process::ExitCode;

use auth::settings::Auth;
use auth::{Acl, Decision, Subject, SubscribeRule, Why};
use broker::access::Action;
use clap::{Args, Subcommand, ValueEnum};
use mqtt::{QoS, Subscription, TopicName};

use crate::config::ConfigArgs;

#[derive(Debug, Subcommand)]
pub enum AclCommand {
    /// Say whether a client may do something with a topic, and which line of the rules decides. Exits with 0 when it
    /// may, with 1 when not, with 2 when the question or the configuration is wrong
    Check(AclCheckArgs),
}

#[derive(Args, Debug)]
pub struct AclCheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// User name; without it, a client that has none
    #[arg(short, long)]
    user: Option<String>,
    /// Client Identifier
    #[arg(short, long)]
    client: String,
    /// Topic Name; to subscribe, the Topic Filter
    #[arg(short, long)]
    topic: String,
    /// What the client wants
    #[arg(short, long)]
    action: Wish,
    /// QoS to publish or subscribe with; the rules of a file make no difference between them
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,
    /// Publish as a retained message; the rules of a file make no difference
    #[arg(short, long)]
    retain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Wish {
    Publish,
    Subscribe,
    /// To be delivered a message
    Receive,
}

/// An answer: whether the client may, and why.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    allowed: bool,
    why: String,
}

impl AclCommand {
    pub fn run(self) -> ExitCode {
        let Self::Check(args) = self;
        match args.config.load() {
            Ok((_, loaded)) => match args.answer(&loaded.tree.auth) {
                Ok(Answer { allowed, why }) => {
                    println!("{}: {why}", if allowed { "allowed" } else { "refused" });
                    return if allowed { ExitCode::SUCCESS } else { ExitCode::from(1) };
                }
                Err(error) => eprintln!("meridian acl check: {error}"),
            },
            Err(error) => eprintln!("{error}"),
        }
        ExitCode::from(2)
    }
}

impl AclCheckArgs {
    fn answer(&self, settings: &Auth) -> Result<Answer, String> {
        let qos = QoS::from_bits(self.qos).ok_or("--qos is 0, 1 or 2")?;
        let (action, topic) = match self.action {
            Wish::Subscribe => {
                let subscription = Subscription::parse(&self.topic)
                    .map_err(|why| format!("`{}` is no Topic Filter: {why}", self.topic))?;
                // Rules speak of the filter only, not of `$share/group/`.
                (Action::Subscribe { qos }, subscription.filter.as_str())
            }
            Wish::Publish | Wish::Receive => {
                TopicName::parse(&self.topic)
                    .map_err(|why| format!("`{}` is no Topic Name: {why}", self.topic))?;
                match self.action {
                    Wish::Publish => (Action::Publish { qos, retain: self.retain }, &*self.topic),
                    _ => (Action::Receive, &*self.topic),
                }
            }
        };
        if self.action == Wish::Publish && (topic == "$SYS" || topic.starts_with("$SYS/")) {
            let why = "the broker takes nothing on `$SYS` from clients, whatever the rules".to_owned();
            return Ok(Answer { allowed: false, why });
        }
        let Some(path) = &settings.acl_file else {
            let why = "there is no auth.acl_file, so every client may do everything".to_owned();
            return Ok(Answer { allowed: true, why });
        };
        let file = path.display();
        // Read once, so that rules and lines are of the same file.
        let text = std::fs::read_to_string(path).map_err(|error| format!("{file}: {error}"))?;
        let acl = Acl::parse(path, &text).map_err(|error| error.to_string())?;
        let subject = Subject { client_id: &self.client, username: self.user.as_deref() };
        let Decision { allowed, why } = acl.decide(subject, action, topic, settings.acl_subscribe);
        let line = |number: u32| {
            format!("{file}:{number}: {}", text.lines().nth(number as usize - 1).unwrap_or_default().trim())
        };
        let mut said = match why {
            Why::Line(number) => line(number),
            Why::DangerousName(number) => format!(
                "{}\na name with `+`, `#` or `/`, or a `$` at its beginning, could mean other topics than its own here, \
                 so this deny holds for all",
                line(number)
            ),
            Why::NoRule if matches!(action, Action::Subscribe { .. }) => {
                format!("{file}: no single rule allows reading everything that `{topic}` matches")
            }
            Why::NoRule => format!("{file}: no rule allows it"),
            Why::SubscribeAlways => {
                "auth.acl_subscribe is \"always\"; what may not be received is not delivered".to_owned()
            }
        };
        if allowed && self.action == Wish::Subscribe && settings.acl_subscribe == SubscribeRule::Covered {
            said.push_str("\nmessages are checked again as they are delivered");
        }
        Ok(Answer { allowed, why: said })
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::Parser;

    use super::*;

    const RULES: &str = "\
topic read public/#

user alice
topic home/alice/#
topic deny home/alice/secret/#

pattern write devices/%c/state
pattern deny devices/%c/private
";

    #[derive(Parser)]
    struct Cli {
        #[command(subcommand)]
        command: AclCommand,
    }

    /// The rules in a file of one test, removed at its end.
    struct File(PathBuf);

    impl File {
        fn new(test: &str) -> Self {
            let name = format!("meridian-acl-check-{test}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, RULES).unwrap();
            Self(path)
        }

        fn settings(&self, subscribe: SubscribeRule) -> Auth {
            Auth { acl_file: Some(self.0.clone()), acl_subscribe: subscribe, ..Auth::default() }
        }

        /// What the command prints, the file called `F`.
        fn ask(&self, question: &str) -> (bool, String) {
            let Answer { allowed, why } = answer(&self.settings(SubscribeRule::Covered), question).unwrap();
            (allowed, why.replace(&self.0.display().to_string(), "F"))
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0).unwrap();
        }
    }

    fn answer(settings: &Auth, question: &str) -> Result<Answer, String> {
        let words = ["acl", "check"].into_iter().chain(question.split_whitespace());
        let Cli { command: AclCommand::Check(args) } =
            Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        args.answer(settings)
    }

    #[test]
    fn the_line_that_decides_is_shown() {
        let file = File::new("line");
        let said = |allowed, text: &str| (allowed, text.to_owned());
        assert_eq!(
            file.ask("--client c --topic public/a --action receive"),
            said(true, "F:1: topic read public/#")
        );
        assert_eq!(
            file.ask("--user alice --client c --topic home/alice/a --action publish --qos 1 --retain"),
            said(true, "F:4: topic home/alice/#")
        );
        assert_eq!(
            file.ask("--user alice --client c --topic home/alice/secret/a --action publish"),
            said(false, "F:5: topic deny home/alice/secret/#")
        );
        assert_eq!(
            file.ask("--user alice --client c --topic devices/c/state --action publish"),
            said(true, "F:7: pattern write devices/%c/state")
        );
        assert_eq!(
            file.ask("--client c --topic home/alice/a --action publish"),
            said(false, "F: no rule allows it")
        );
        assert_eq!(
            file.ask("--client c --topic $share/g/home/# --action subscribe"),
            said(false, "F: no single rule allows reading everything that `home/#` matches")
        );
        let (allowed, why) = file.ask("--client c --topic $share/g/public/+ --action subscribe");
        assert!(allowed && why.starts_with("F:1: topic read public/#\n"), "{why}");
        let (allowed, why) = file.ask("--client a/b --topic devices/a/b/state --action publish");
        assert!(!allowed && why.starts_with("F:8: pattern deny devices/%c/private\na name with"), "{why}");
        let (allowed, why) = file.ask("--client c --topic $SYS/broker/x --action publish");
        assert!(!allowed && why.contains("`$SYS`"), "{why}");
    }

    #[test]
    fn what_is_configured_counts() {
        let answer = |settings: &Auth| answer(settings, "--client c --topic # --action subscribe").unwrap();
        let file = File::new("configured");
        assert!(!answer(&file.settings(SubscribeRule::Covered)).allowed);
        assert!(answer(&file.settings(SubscribeRule::Always)).allowed);
        assert!(answer(&Auth::default()).why.contains("no auth.acl_file"));
    }

    #[test]
    fn a_question_that_makes_no_sense_is_an_error() {
        let settings = Auth::default();
        for (question, part) in [
            ("--client c --topic a/# --action publish", "no Topic Name"),
            ("--client c --topic a/#/b --action subscribe", "no Topic Filter"),
            ("--client c --topic a --action delete", "delete"),
            ("--client c --topic a --action publish --qos 3", "3"),
            ("--topic a --action publish", "--client"),
        ] {
            let error = answer(&settings, question).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let settings = Auth { acl_file: Some("/nonexistent/acl".into()), ..Auth::default() };
        let error = answer(&settings, "--client c --topic a --action publish").unwrap_err();
        assert!(error.starts_with("/nonexistent/acl: "), "{error}");
    }
}

//! `meridian acl check`: the decision of the access rules on one request, and the rule that decides.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use auth::settings::{Auth, SourceNames};
use auth::{Authority, Explanation, Opinion, SourceName, Sources};
use broker::access::{Action, ClientCertificate, Identity, Principal};
use clap::{Args, Subcommand, ValueEnum};
use mqtt::{QoS, Subscription, TopicName};

use crate::config::ConfigArgs;

#[derive(Debug, Subcommand)]
pub enum AclCommand {
    /// Check whether a client may do something with a topic, and show the source and rule that decide. Exits with 0
    /// when it may, with 1 when not, with 2 when the request or the configuration is wrong
    Check(Box<AclCheckArgs>),
}

#[derive(Args, Debug)]
pub struct AclCheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Check this rules file only, whatever is configured
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// User name; without it, a client that has none
    #[arg(short, long)]
    user: Option<String>,
    /// Client Identifier
    #[arg(short, long)]
    client: String,
    /// Topic Name; to subscribe, the Topic Filter
    #[arg(short, long)]
    topic: String,
    /// Action of the client
    #[arg(short, long)]
    action: ActionArg,
    /// QoS to publish or subscribe with
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,
    /// Publish as a retained message
    #[arg(short, long)]
    retain: bool,
    /// The client's address; without it, a client of a Unix socket
    #[arg(long)]
    address: Option<IpAddr>,
    /// Common Name of the client's certificate; without it, a client that shows none
    #[arg(long, value_name = "NAME")]
    cert_cn: Option<String>,
    /// An attribute of the user or its token; can be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    attribute: Vec<String>,
    /// Name of the listener that the client connects to
    #[arg(long, value_name = "NAME", default_value = "")]
    listener: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ActionArg {
    Publish,
    Subscribe,
    /// Receive a message
    Receive,
}

/// Decision about the request, and the text to print.
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
        let (action, topic) = self.action_and_topic()?;
        let attributes = self.attributes()?;
        if self.action == ActionArg::Publish && (topic == "$SYS" || topic.starts_with("$SYS/")) {
            let why = "the broker accepts nothing on `$SYS` from clients, whatever the rules say".to_owned();
            return Ok(Answer { allowed: false, why });
        }
        let sources = match &self.rules {
            None => Sources::read(settings),
            Some(file) => Sources::read(&Auth {
                rules_file: Some(file.clone()),
                acl_file: None,
                sources: Some(SourceNames(vec![SourceName::Rules])),
                ..settings.clone()
            }),
        };
        let sources = sources.map_err(|error| error.to_string())?;
        let certificate = self
            .cert_cn
            .as_ref()
            .map(|name| ClientCertificate { common_name: Some(name.as_str().into()), ..Default::default() });
        let principal = Principal { attributes, ..Principal::default() };
        let who = Identity {
            client_id: &self.client,
            username: self.user.as_deref(),
            peer: self.address,
            listener: &self.listener,
            certificate: certificate.as_ref(),
            principal: Some(&principal),
        };
        let explanation = Authority::default().explain(&sources, who, action, topic);
        let mut why = describe(&explanation);
        let remote_sources: Vec<SourceName> =
            if sources.are_named() { sources.order().collect() } else { Vec::new() };
        for name in [SourceName::Database, SourceName::Http] {
            if remote_sources.contains(&name) {
                let name = name.as_str();
                why.push_str(&format!(
                    "\n{name} is asked by a running node only: use POST /api/v1/rules/test"
                ));
            }
        }
        if explanation.allowed && self.action == ActionArg::Subscribe {
            why.push_str("\nmessages are checked again as they are delivered");
        }
        Ok(Answer { allowed: explanation.allowed, why })
    }

    fn action_and_topic(&self) -> Result<(Action, &str), String> {
        let qos = QoS::from_bits(self.qos).ok_or("--qos is 0, 1 or 2")?;
        if self.action == ActionArg::Subscribe {
            let subscription = Subscription::parse(&self.topic)
                .map_err(|why| format!("`{}` is not a Topic Filter: {why}", self.topic))?;
            // Rules name the filter only, not `$share/group/`.
            return Ok((Action::Subscribe { qos }, subscription.filter.as_str()));
        }
        TopicName::parse(&self.topic)
            .map_err(|why| format!("`{}` is not a Topic Name: {why}", self.topic))?;
        match self.action {
            ActionArg::Publish => Ok((Action::Publish { qos, retain: self.retain }, &self.topic)),
            _ => Ok((Action::Receive, &self.topic)),
        }
    }

    fn attributes(&self) -> Result<Vec<Attribute>, String> {
        let pair = |text: &String| match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
            _ => Err(format!("--attribute is KEY=VALUE, such as role=admin, not `{text}`")),
        };
        self.attribute.iter().map(pair).collect()
    }
}

/// Name and value.
type Attribute = (Box<str>, Box<str>);

/// Describes the source that decides on the first line, then the opinions of the other sources.
fn describe(explanation: &Explanation) -> String {
    let Explanation { steps, decided_by, .. } = explanation;
    let decisive = &steps[*decided_by];
    let mut text = format!("{}: {}", decisive.by.name(), decisive.reason);
    for (index, step) in steps.iter().enumerate() {
        let opinion = match step.opinion {
            _ if index == *decided_by => continue,
            Opinion::None => "nothing",
            Opinion::Allow => "yes",
            Opinion::Deny => "no",
            Opinion::Later => "not yet known",
            Opinion::Failed => "cannot find out",
        };
        let place = if index < *decided_by { "before it" } else { "not asked" };
        text.push_str(&format!("\n  {place}: {} says {opinion}: {}", step.by.name(), step.reason));
    }
    text
}

#[cfg(test)]
mod tests {
    use auth::SubscribeRule;
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

    /// The rules in a file of one test, removed at the end of the test.
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

        /// Output of the command; the file is called `F` in it.
        fn ask(&self, question: &str) -> (bool, String) {
            let Answer { allowed, why } = answer(&self.settings(SubscribeRule::Covered), question).unwrap();
            let why = why.split_once("\n  not asked").map_or(&*why, |(decisive, _)| decisive);
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
    fn the_deciding_line_is_shown() {
        let file = File::new("line");
        let reason = |allowed, text: &str| (allowed, format!("acl_file: {text}"));
        let nobody = (
            false,
            "no_match: no source applies, so access is refused (auth.no_match)\n  before it: acl_file says nothing: ".to_owned(),
        );
        let nobody = |reason: &str| (nobody.0, format!("{}{reason}", nobody.1));
        assert_eq!(
            file.ask("--client c --topic public/a --action receive"),
            reason(true, "F:1: topic read public/#")
        );
        assert_eq!(
            file.ask("--user alice --client c --topic home/alice/a --action publish --qos 1 --retain"),
            reason(true, "F:4: topic home/alice/#")
        );
        assert_eq!(
            file.ask("--user alice --client c --topic home/alice/secret/a --action publish"),
            reason(false, "F:5: topic deny home/alice/secret/#")
        );
        assert_eq!(
            file.ask("--user alice --client c --topic devices/c/state --action publish"),
            reason(true, "F:7: pattern write devices/%c/state")
        );
        assert_eq!(file.ask("--client c --topic home/alice/a --action publish"), nobody("no rule applies"));
        assert_eq!(
            file.ask("--client c --topic $share/g/home/# --action subscribe"),
            nobody("no single rule allows reading everything that the filter matches")
        );
        let (allowed, why) = file.ask("--client c --topic $share/g/public/+ --action subscribe");
        assert!(allowed && why == "acl_file: F:1: topic read public/#", "{why}");
        let (allowed, why) = file.ask("--client a/b --topic devices/a/b/state --action publish");
        assert!(
            !allowed && why.starts_with("acl_file: F:8: pattern deny devices/%c/private\na name with"),
            "{why}"
        );
        let (allowed, why) = file.ask("--client c --topic $SYS/broker/x --action publish");
        assert!(!allowed && why.contains("`$SYS`"), "{why}");
    }

    #[test]
    fn the_configured_sources_count() {
        let answer = |settings: &Auth| answer(settings, "--client c --topic # --action subscribe").unwrap();
        let file = File::new("configured");
        assert!(!answer(&file.settings(SubscribeRule::Covered)).allowed);
        assert!(answer(&file.settings(SubscribeRule::Always)).allowed);
        assert!(answer(&Auth::default()).why.contains("no source of authorisation"));
    }

    #[test]
    fn a_rules_file_is_checked_with_everything_known_about_the_client() {
        let file = File::new("rules");
        let text = "allow cert cn=gw-* publish gw/${cert_cn}/# qos 0 retain no\nallow attribute role=admin and address 10.0.0.0/8 \
                    and listener in all #\n";
        std::fs::write(&file.0, text).unwrap();
        let ask = |question: &str| {
            let path = file.0.display();
            // The configured sources do not matter.
            let settings = Auth { acl_file: Some("/nonexistent/acl".into()), ..Auth::default() };
            let Answer { allowed, why } =
                answer(&settings, &format!("--rules {path} --client c {question}")).unwrap();
            (allowed, why.lines().next().unwrap_or_default().replace(&path.to_string(), "F"))
        };
        let first = "rules: F:1: allow cert cn=gw-* publish gw/${cert_cn}/# qos 0 retain no";
        assert_eq!(ask("--cert-cn gw-1 --topic gw/gw-1/up --action publish"), (true, first.to_owned()));
        for more in ["--qos 1", "--retain", "--cert-cn probe"] {
            let question = format!("--topic gw/gw-1/up --action publish {more}");
            let name = if more.starts_with("--cert") { "" } else { "--cert-cn gw-1 " };
            assert!(!ask(&format!("{name}{question}")).0, "{more}");
        }
        let admin = "--attribute role=admin --address 10.1.2.3 --listener in --topic # --action subscribe";
        let (allowed, why) = ask(admin);
        assert!(allowed && why.starts_with("rules: F:2: "), "{why}");
        assert!(!ask(&admin.replace("role=admin", "role=user")).0);
    }

    #[test]
    fn an_invalid_request_is_an_error() {
        let settings = Auth::default();
        for (question, part) in [
            ("--client c --topic a/# --action publish", "not a Topic Name"),
            ("--client c --topic a/#/b --action subscribe", "not a Topic Filter"),
            ("--client c --topic a --action delete", "delete"),
            ("--client c --topic a --action publish --qos 3", "3"),
            ("--topic a --action publish", "--client"),
            ("--client c --topic a --action publish --attribute role", "KEY=VALUE"),
        ] {
            let error = answer(&settings, question).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let settings = Auth { acl_file: Some("/nonexistent/acl".into()), ..Auth::default() };
        let error = answer(&settings, "--client c --topic a --action publish").unwrap_err();
        assert!(error.starts_with("/nonexistent/acl: "), "{error}");
    }
}

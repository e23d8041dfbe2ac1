//! `mqttx simulate`: devices that send JSON. The names are MQTTX's; the contents of the messages are original.

use super::UsageError;
use super::familiar::SendArgs;
use super::mqtt5::MessagePropertyArgs;
use super::mqttx::ClientArgs;
use crate::plan::{Kind, Message, Plan};
use crate::template::{Placeholders, Template};
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct Simulate {
    #[command(flatten)]
    clients: ClientArgs,
    /// Scenario: tesla, IEM, smart_home or weather (-sc)
    #[arg(long)]
    scenario: Option<String>,
    /// Not supported: scripts are not run
    #[arg(long, short = 'f')]
    file: Option<PathBuf>,
    /// Topic Name: %i the client's number, %c its Client Identifier, %u its User Name, %sc the scenario
    #[arg(long, short = 't', default_value = "mqttx/simulate/%sc/%c")]
    topic: String,
    #[command(flatten)]
    properties: MessagePropertyArgs,
    #[command(flatten)]
    sending: SendArgs,
}

/// Names and payloads of the built-in scenarios.
const SCENARIOS: [(&str, &str); 4] = [
    (
        "tesla",
        r#"{"vehicle":"%c","sent_ms":%TIMESTAMP%,"message":%s,"mode":"%pick(driving|parked|charging)","gear":"%pick(P|R|N|D)","position":{"latitude":%rand_10_60.%rand_100000_999999,"longitude":%rand_10_120.%rand_100000_999999,"bearing":%rand_0_359,"altitude_m":%rand_0_3000},"motion":{"km_per_h":%rand_0_160,"power_kw":%rand_0_250,"km_in_all":%rand_1000_300000},"battery":{"percent":%rand_5_100,"range_km":%rand_20_550,"celsius":%rand_5_45,"charging_kw":%rand_0_150},"cabin":{"inside_celsius":%rand_15_30,"outside_celsius":%rand_0_38,"climate":%pick(true|false),"occupied":%pick(true|false)},"closed":{"doors":%pick(true|false),"windows":%pick(true|false),"trunk":%pick(true|false),"locked":%pick(true|false)},"tyres_bar":[2.%rand_3_9,2.%rand_3_9,2.%rand_3_9,2.%rand_3_9],"software":"%rand_1_9.%rand_0_20.%rand_0_9"}"#,
    ),
    (
        "IEM",
        r#"{"meter":"%c","sent_ms":%TIMESTAMP%,"message":%s,"line":%rand_8,"watts":{"compressor":%rand_9000_15000,"furnace":%rand_120000_200000,"cooling":%rand_60000_100000,"conveyor":%rand_30000_50000,"press":%rand_40000_70000,"lighting":%rand_3000_5000},"volts":[%rand_225_235,%rand_225_235,%rand_225_235],"power_factor":0.%rand_80_99,"kwh_in_all":%rand_100000_900000}"#,
    ),
    (
        "smart_home",
        r#"{"home":"%c","sent_ms":%TIMESTAMP%,"message":%s,"rooms":{"kitchen":{"celsius":%rand_18_25,"light":%pick(true|false),"fridge_celsius":%rand_2_8},"bath":{"celsius":%rand_20_26,"humidity":%rand_40_90},"bedroom":{"celsius":%rand_16_22,"window_open":%pick(true|false)},"living":{"celsius":%rand_19_24,"light":%pick(true|false),"tv":%pick(true|false)}},"door":"%pick(locked|closed|open)","watts":%rand_80_4000}"#,
    ),
    (
        "weather",
        r#"{"station":"%c","sent_ms":%TIMESTAMP%,"message":%s,"celsius":%rand_0_35.%rand_0_9,"humidity":%rand_20_100,"hpa":%rand_980_1040,"wind":{"m_per_s":%rand_0_30,"from":"%pick(N|NE|E|SE|S|SW|W|NW)","gust_m_per_s":%rand_0_45},"rain_mm":%rand_0_20.%rand_0_9,"sky":"%pick(clear|cloudy|overcast|rain|snow|fog)","uv":%rand_0_11,"air":{"pm2_5":%rand_1_60,"pm10":%rand_2_90,"ozone":%rand_20_180}}"#,
    ),
];

impl Simulate {
    pub fn plan(self) -> Result<Plan, UsageError> {
        if self.file.is_some() {
            return Err(UsageError(
                "error: -f is not supported, scripts are not run: use `meridian bench --scenario FILE` with a payload \
                 template, or -sc with a scenario that is built in"
                    .to_owned(),
            ));
        }
        let wanted = self.scenario.unwrap_or_default();
        let Some((name, payload)) = SCENARIOS.iter().find(|(name, _)| *name == wanted) else {
            return Err(UsageError(format!("error: -sc `{wanted}`: it is one of {}", names().join(", "))));
        };
        let topic = self.topic.replace("%sc", name);
        let template = Template::parse(payload, Placeholders::All { size: 0 });
        let message = Message::Generated(template.map_err(|why| UsageError(format!("error: {why}")))?);
        let mut plan = self.sending.plan(self.clients.plan(Kind::Pub)?, topic, message)?;
        plan.messages.properties = self.properties.properties();
        Ok(plan)
    }
}

/// Names of the built-in scenarios.
pub fn names() -> Vec<&'static str> {
    SCENARIOS.map(|(name, _)| name).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain::Stamp;
    use crate::random::Random;
    use crate::template::TemplateContext;

    #[test]
    fn every_message_is_different_json() {
        for (name, payload) in SCENARIOS {
            let template = Template::parse(payload, Placeholders::All { size: 0 }).unwrap();
            let message = |seq| {
                let mut out = vec![];
                let of = TemplateContext {
                    number: 1,
                    client_id: "c1",
                    username: "",
                    message: Stamp { seq, wall: 5_000_000 },
                };
                template.fill(of, &mut Random::of([1, 1, seq]), &mut out);
                serde_json::from_slice::<serde_json::Value>(&out)
                    .unwrap_or_else(|error| panic!("{name}: {error}: {}", String::from_utf8_lossy(&out)))
            };
            assert_eq!((&message(0)["sent_ms"], &message(6)["message"]), (&5.into(), &7.into()), "{name}");
            for seq in 0..200 {
                assert_ne!(message(seq), message(seq + 1), "{name}");
            }
        }
    }
}

use super::*;

fn output() -> Value {
    Value::object([
        ("clientid", Value::from("a,b c=d\\e\"f")),
        ("plain", "kitchen".into()),
        ("lines", "a\nweather x=1\r\n".into()),
        ("slash", "a\\".into()),
        ("empty", "".into()),
        ("hash", "#a".into()),
        ("n", Value::Int(-7)),
        ("whole", Value::Float(3.0)),
        ("half", Value::Float(0.5)),
        ("huge", Value::Float(1e300)),
        ("on", Value::Bool(true)),
        ("digits", "42".into()),
        ("ts", Value::Int(1_700_000_000_123)),
        ("bytes", Value::of_bytes(&[0xff])),
        ("list", Value::array(vec![Value::Int(1), "x".into()])),
        ("payload", r#"{"temp":21.5}"#.into()),
    ])
}

fn render(template: &str) -> Result<String, String> {
    let limits = Limits::default();
    let template = LineTemplate::parse(template, &limits).map_err(|why| format!("template: {why}"))?;
    let line = template.render(&output(), &limits).map_err(|error| error.to_string())?;
    Ok(String::from_utf8(line).expect("UTF-8"))
}

#[test]
fn values_are_written_by_position_and_type() {
    for (template, line) in [
        (
            "weather,site=${plain} temp=${payload.temp},n=${n}i ${ts}",
            "weather,site=kitchen temp=21.5,n=-7i 1700000000123",
        ),
        ("  m f=1\n", "m f=1"),
        ("m  f=1   ${ts}", "m f=1 1700000000123"),
        ("m f=1 ${ts}000000", "m f=1 1700000000123000000"),
        ("m f=1 ${digits}", "m f=1 42"),
        ("m f=1 ${whole}", "m f=1 3"),
        ("m f=1 ${none?}", "m f=1"),
        ("m f=1 -5", "m f=1 -5"),
        // Types of fields.
        ("m a=${n},b=${half},c=${huge},d=${on},e=${plain}", "m a=-7,b=0.5,c=1e300,d=true,e=\"kitchen\""),
        ("m a=${whole}i,b=${digits}i,c=${digits}u", "m a=3i,b=42i,c=42u"),
        ("m a=${digits},b=\"${n}\",c=\"x ${plain}, y\"", "m a=\"42\",b=\"-7\",c=\"x kitchen, y\""),
        ("m a=${list}", "m a=\"[1,\\\"x\\\"]\""),
        ("m a=t,b=FALSE,c=-1.5e3,d=7i,e=7u,f=\"\"", "m a=t,b=FALSE,c=-1.5e3,d=7i,e=7u,f=\"\""),
        // Escapes.
        ("${clientid} f=1", "a\\,b\\ c=d\\\\e\"f f=1"),
        ("m,t=${clientid} f=1", "m,t=a\\,b\\ c\\=d\\\\e\"f f=1"),
        ("m,${clientid}=t f=1", "m,a\\,b\\ c\\=d\\\\e\"f=t f=1"),
        ("m ${clientid}=1", "m a\\,b\\ c\\=d\\\\e\"f=1"),
        ("m f=${clientid}", "m f=\"a,b c=d\\\\e\\\"f\""),
        ("m f=\"<${clientid}>\"", "m f=\"<a,b c=d\\\\e\\\"f>\""),
        ("m f=\"${slash}\",g=${slash}", "m f=\"a\\\\\",g=\"a\\\\\""),
        ("m,t=${lines}x f=${lines}", "m,t=a\\nweather\\ x\\=1\\r\\nx f=\"a\\nweather x=1\\r\\n\""),
        ("my\\ m\\,x,t\\=a=b\\ c f\\ g=\"a\\\"b\" 1", "my\\ m\\,x,t\\=a=b\\ c f\\ g=\"a\\\"b\" 1"),
        // Missing optional values.
        ("m,a=${none?},b=${plain} f=${none?},g=1", "m,b=kitchen g=1"),
        ("m,a=x-${none?} f=\"x ${none?}\",g=${none?}i,h=1", "m h=1"),
        ("m,a=${empty} f=${empty}", "m f=\"\""),
    ] {
        assert_eq!(render(template).as_deref(), Ok(line), "{template}");
    }
}

#[test]
fn a_value_without_a_form_is_an_error_of_its_record() {
    for (template, says) in [
        ("m f=${none}", "the output has no `none`"),
        ("m f=${none?}", "has no field"),
        ("m f=${half}i", "the field `f` is not an integer"),
        ("m f=${n}u", "the field `f` is not an integer from 0"),
        ("m f=${plain}i", "the field `f` is not an integer"),
        ("m f=${huge}i", "the field `f` is not an integer"),
        ("m f=${on}i", "the field `f` is not an integer"),
        ("m f=1 ${plain}", "the timestamp is not an integer"),
        ("m f=1 ${half}", "the timestamp is not an integer"),
        ("m f=1 ${lines}", "the timestamp is not an integer"),
        ("${empty} f=1", "the measurement is empty"),
        ("${none?} f=1", "the measurement is empty"),
        ("${hash} f=1", "begins with `#`"),
        ("${slash} f=1", "ends with a backslash"),
        ("m,t=${slash} f=1", "ends with a backslash"),
        ("m,${slash}=1 f=1", "ends with a backslash"),
        ("m,${empty}=1 f=1", "the key of a tag is empty"),
        ("m ${empty}=1", "the key of a field is empty"),
        ("m f=${bytes}", "not UTF-8"),
        ("m,t=${bytes} f=1", "not UTF-8"),
    ] {
        let error = render(template).expect_err(template);
        assert!(error.contains(says) && !error.starts_with("template"), "{template}: {error}");
    }
}

#[test]
fn a_wrong_template_is_explained() {
    for (template, says) in [
        ("", "no measurement"),
        (",t=1 f=1", "no measurement"),
        ("# m f=1", "no measurement"),
        ("m", "has no field"),
        ("m,t=1", "has no field"),
        ("m,t f=1", "`t` is not a tag"),
        ("m,=1 f=1", "is not a tag"),
        ("m,t= f=1", "the tag `t` has no value"),
        ("m,t=a=b f=1", "a second `=`"),
        ("m f", "`f` is not a field"),
        ("m f=", "the field `f` is neither"),
        ("m f=1,", "is not a field"),
        ("m f=abc", "write f=\"...\""),
        ("m f=a${n}", "write f=\"...\""),
        ("m f=${n}${n}", "write f=\"...\""),
        ("m f=${n}x", "write f=\"...\""),
        ("m f=NaN", "write f=\"...\""),
        ("m f=\"abc", "no closing quotation mark"),
        ("m f=\"a\"b", "text after the value"),
        ("m f=1 now", "`now` is not an integer"),
        ("m f=1 1 2", "text after its timestamp"),
        ("m f=1\nm f=2", "several lines"),
        ("m f=${n", "no closing brace"),
        ("m,t=a\\${v} f=1", "a backslash right before a placeholder"),
        ("m f=\"\\${v}\"", "a backslash right before a placeholder"),
    ] {
        let error = render(template).expect_err(template);
        assert!(error.starts_with("template: ") && error.contains(says), "{template}: {error}");
    }
}

#[test]
fn no_value_makes_a_second_line_or_position() {
    let limits = Limits::default();
    let template =
        LineTemplate::parse("${v}x,${v}k=${v}x ${v}k=${v},s=\"${v}\" 1", &limits).expect("a template");
    for value in ["\n", "\r\n", "a b", "a,b=c d=e", "\"", "\\", "\\\\\"", "\u{2028}\u{85}", "a\\\nb"] {
        let output = Value::object([("v", Value::from(value))]);
        let line = template.render(&output, &limits).expect("a line");
        let line = String::from_utf8(line).expect("UTF-8");
        assert!(!line.contains(['\n', '\r']), "{line:?}");
        assert_eq!(positions(&line), 4, "{value:?}: {line}");
    }
}

/// Counts the separators that a server finds: those that are neither escaped nor in a quoted field.
fn positions(line: &str) -> usize {
    let (mut is_escaped, mut is_quoted, mut found, mut before) = (false, false, 0, ' ');
    for c in line.chars() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' if is_quoted || (before == '=' && found >= 2) => is_quoted = !is_quoted,
            ',' | ' ' if !is_quoted => found += 1,
            _ => {}
        }
        before = c;
    }
    found
}

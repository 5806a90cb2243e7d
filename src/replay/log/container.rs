//! Lines that a container runtime has wrapped: by Docker's driver `json-file`, or in the format of the
//! Container Runtime Interface (CRI), which Kubernetes and Podman keep.

use std::borrow::Cow;

use super::record::LineFault;

/// Runtimes split lines of more than 16 KiB.
const PARTIAL: LineFault = LineFault::Broken("the container runtime has split the line in parts");

/// The line that the program in the container wrote. A line that no runtime has wrapped stays as it is.
///
/// # Errors
/// If the line is only a part of a longer line.
pub fn unwrapped(line: &str) -> Result<Cow<'_, str>, LineFault> {
    let whole = line.trim_start_matches(['\0', '\u{feff}']);
    if let Some(text) = docker(whole) {
        return match text.strip_suffix('\n') {
            Some(text) => Ok(Cow::Owned(text.to_owned())),
            None => Err(PARTIAL),
        };
    }
    match cri(whole) {
        Some(("F", text)) => Ok(Cow::Borrowed(text)),
        Some(_) => Err(PARTIAL),
        None => Ok(Cow::Borrowed(line)),
    }
}

/// The text in `{"log":"TEXT\n","stream":"stdout","time":"…"}`, as Docker writes it: without spaces, in this
/// order.
fn docker(line: &str) -> Option<String> {
    let rest = line.strip_prefix("{\"log\":").filter(|rest| rest.starts_with('"'))?;
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<String>();
    let text = values.next()?.ok()?;
    let stream = rest.get(values.byte_offset()..)?.strip_prefix(",\"stream\":\"std")?;
    (stream.starts_with("out\"") || stream.starts_with("err\"")).then_some(text)
}

/// The tag and the text of `2026-01-02T03:04:05.123456789Z stdout F TEXT`. The tag is `F` for a full line, and `P`
/// for a part of a line.
fn cri(line: &str) -> Option<(&str, &str)> {
    if line.as_bytes().get(10) != Some(&b'T') {
        return None;
    }
    let mut words = line.splitn(4, ' ');
    let (_time, stream, tags, text) = (words.next()?, words.next()?, words.next()?, words.next()?);
    // Other tags may follow the first.
    let tag = tags.split(':').next()?;
    (matches!(stream, "stdout" | "stderr") && matches!(tag, "F" | "P")).then_some((tag, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"203.0.113.7 - - [17/May/2015:10:05:03 +0000] "GET /ä HTTP/1.1" 200 5"#;

    fn by_docker(text: &str) -> String {
        let text = serde_json::to_string(text).unwrap();
        format!(r#"{{"log":{text},"stream":"stdout","time":"2026-01-02T03:04:05.123456789Z"}}"#)
    }

    #[test]
    fn a_line_wrapped_by_a_runtime_is_unwrapped() {
        for wrapped in [
            by_docker(&format!("{LINE}\n")),
            format!("\0\0{}", by_docker(&format!("{LINE}\n"))),
            by_docker(&format!("{LINE}\n"))
                .replace(",\"time\"", ",\"attrs\":{\"tag\":\"x\"},\"time\""),
            format!("2026-01-02T03:04:05.123456789Z stdout F {LINE}"),
            format!("2026-01-02T03:04:05.123456789+01:00 stderr F:x {LINE}"),
        ] {
            assert_eq!(unwrapped(&wrapped).unwrap(), LINE, "{wrapped}");
        }
    }

    #[test]
    fn a_part_of_a_line_is_not_read() {
        for wrapped in [by_docker(LINE), format!("2026-01-02T03:04:05Z stdout P {LINE}")] {
            assert_eq!(unwrapped(&wrapped), Err(PARTIAL), "{wrapped}");
        }
    }

    #[test]
    fn other_lines_stay_as_they_are() {
        for line in [
            "",
            LINE,
            r#"{"log":"access","method":"GET","path":"/a"}"#,
            r#"{"log":"x\n","stream":"stdoutx"}"#,
            r#"{"log":7,"stream":"stdout"}"#,
            r#"{"log":"#,
            "2026-01-02T03:04:05Z stdout F",
            "2026-01-02T03:04:05Z stdout G x",
            "2026-01-02T03:04:05Z elsewhere F x",
        ] {
            assert_eq!(unwrapped(line).unwrap(), line);
        }
    }
}

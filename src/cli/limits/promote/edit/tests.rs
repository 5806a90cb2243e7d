use super::*;
use crate::config::candidate_fields;
use crate::plan::LimitSpec;
use crate::plan::testing::plan;

fn promote(text: &str) -> String {
    promoted(text, "a", &candidate_fields()).unwrap()
}

#[test]
fn only_the_figures_and_the_candidate_change() {
    for (name, before, after) in [
        (
            "a line with comments",
            "# top\n[limits.a] # a\nkey = [\"ip\"]\n# own\nrate = \"100/s\"   # per client\nburst = 200 # more\n\
             # tried\ncandidate = { rate = '50/s', burst = 60 } # since May\nmode = \"shadow\"\n# end\n",
            "# top\n[limits.a] # a\nkey = [\"ip\"]\n# own\nrate = '50/s'   # per client\nburst = 60 # more\n\
             mode = \"shadow\"\n# end\n",
        ),
        (
            "the candidate has no burst: the limit's burst goes too",
            "[limits.a]\nrate = \"100/s\"\nburst = 200 # more\ncandidate = { rate = \"50/s\" }",
            "[limits.a]\nrate = \"50/s\"\n",
        ),
        (
            "a burst that the limit does not have",
            "[limits.a]\ncandidate = { burst = 60, rate = \"50/s\" }\nrate = \"100/s\" # c\nkey = [\"ip\"]\n",
            "[limits.a]\nrate = \"50/s\" # c\nkey = [\"ip\"]\nburst = 60\n",
        ),
        (
            "no spaces",
            "[limits.a]\nrate=\"9/s\"\ncandidate={rate=\"5/s\",burst=6}",
            "[limits.a]\nrate=\"5/s\"\nburst = 6\n",
        ),
        (
            "rate is the last line, and has no end",
            "[limits.a]\ncandidate = { rate = \"5/s\", burst = 6 }\nrate = \"9/s\"",
            "[limits.a]\nrate = \"5/s\"\nburst = 6\n",
        ),
        (
            "several lines",
            "[limits.a]\nrate = \"9/s\"\ncandidate = {\n  rate = \"5/s\", # less\n  # and\n  burst = 6,\n}\nkey = []\n",
            "[limits.a]\nrate = \"5/s\"\nkey = []\nburst = 6\n",
        ),
        (
            "its own section, between others",
            "[limits.a]\nrate = \"9/s\"\n\n# tried\n[limits.a.candidate] # here\nrate = \"5/s\"\n# in\nburst = 6 # b\n\n\
             # next\n[limits.b]\nrate = \"1/s\"\ncandidate = { rate = \"2/s\" }\n",
            "[limits.a]\nrate = \"5/s\"\nburst = 6\n\n# next\n[limits.b]\nrate = \"1/s\"\n\
             candidate = { rate = \"2/s\" }\n",
        ),
        (
            "its own section, before the limit",
            "[limits.a.candidate]\nrate = \"5/s\"\n\n[limits.a]\nrate = \"9/s\"\nburst = 10\n",
            "\n[limits.a]\nrate = \"5/s\"\n",
        ),
        (
            "a section at the end",
            "[limits.a]\nrate = \"9/s\"\n\n[limits.a.candidate]\nrate = \"5/s\"\n",
            "[limits.a]\nrate = \"5/s\"\n",
        ),
        (
            "dotted keys",
            "limits.a.rate = \"9/s\"\nlimits.a.candidate.rate = \"5/s\" # x\nlimits.\"a\" . candidate.burst = 6\n",
            "limits.a.rate = \"5/s\"\nlimits.a.burst = 6\n",
        ),
        (
            "dotted keys in a section",
            "[limits.a]\ncandidate.burst = 6\nrate = \"9/s\"\nkey = [\"ip\"]\n\"candidate\".rate = \"5/s\"\n",
            "[limits.a]\nrate = \"5/s\"\nkey = [\"ip\"]\nburst = 6\n",
        ),
        (
            "between braces",
            "[limits]\na = { key = [\"ip\"], rate = \"9/s\", candidate = { rate = \"5/s\", burst = 6 } } # a\nb = { rate = \"9/s\" }\n",
            "[limits]\na = { key = [\"ip\"], rate = \"5/s\", burst = 6 } # a\nb = { rate = \"9/s\" }\n",
        ),
        (
            "between braces, in front",
            "limits = { a = { candidate = { rate = \"5/s\" }, burst = 10, rate = \"9/s\" } }\n",
            "limits = { a = { rate = \"5/s\" } }\n",
        ),
        (
            "dotted keys between braces",
            "[limits]\na = { candidate.burst = 6, rate = \"9/s\", candidate.rate = \"5/s\" }\n",
            "[limits]\na = { rate = \"5/s\", burst = 6 }\n",
        ),
        (
            "dotted limits between braces",
            "limits = { a.rate = \"9/s\", a.burst = 10, a.candidate.rate = \"5/s\", b.rate = \"1/s\" }\n",
            "limits = { a.rate = \"5/s\", b.rate = \"1/s\" }\n",
        ),
        (
            "lines that end as on Windows, and other characters",
            "# ä\r\n[limits.a]\r\nrate = \"9/s\" # ü\r\ncandidate = { rate = \"5/s\", burst = 6 }\r\nkey = []\r\n",
            "# ä\r\n[limits.a]\r\nrate = \"5/s\" # ü\r\nkey = []\r\nburst = 6\r\n",
        ),
        (
            "a variable of the environment",
            "[limits.a]\nrate = \"9/s\"\ncandidate = { rate = \"${RATE}\" }\n",
            "[limits.a]\nrate = \"${RATE}\"\n",
        ),
        (
            "a queue",
            "[limits.a]\nalgorithm = \"leaky-bucket\"\nrate = \"9/s\"\nqueue = 0\ncandidate = { rate = \"5/s\", queue = 4 }\n",
            "[limits.a]\nalgorithm = \"leaky-bucket\"\nrate = \"5/s\"\nqueue = 4\n",
        ),
    ] {
        assert_eq!(promote(before), after, "{name}");
    }
}

#[test]
fn a_file_with_nothing_to_promote_has_no_new_text() {
    // Braces over several lines may have comments, which would be lost.
    let lines = "[limits]\na = {\n  rate = \"9/s\", # own\n  candidate = { rate = \"5/s\" }\n}\n";
    for text in
        ["", "[limits.b]\n", "[limits.a]\nrate = \"1/s\"\n", "limits = 1\n", "[limits\n", lines]
    {
        assert_eq!(promoted(text, "a", &["rate"]), None, "{text}");
    }
}

/// The limit `a` of a file that has these lines.
fn limit(lines: &str) -> LimitSpec {
    let text = format!("{lines}\n[[routes]]\npath = \"/\"\nrespond = {{}}\nlimits = [\"a\"]\n");
    let plan = plan(&text);
    plan.limits.iter().find(|limit| limit.name.as_str() == "a").map(|it| (**it).clone()).unwrap()
}

/// However the limit is written, it has the candidate's figures after the edit. The candidate may lack any size.
#[test]
fn the_limit_is_what_its_candidate_was() {
    let sizes =
        [("", ""), (", burst = 20", ""), ("", ", burst = 30"), (", burst = 20", ", burst = 30")];
    for (own, other) in sizes {
        for newline in ["\n", "\r\n"] {
            for first in ["own", "key", "candidate"] {
                let mut fields = [
                    ("own", format!("rate = \"9/s\"{own}")),
                    ("candidate", format!("candidate = {{ rate = \"5/s\"{other} }}")),
                    ("key", "key = [\"ip\"]".to_owned()),
                ];
                fields.sort_by_key(|(name, _)| *name != first);
                let braces: Vec<_> = fields.iter().map(|(_, field)| field.clone()).collect();
                let lines = braces.iter().map(|field| match field.starts_with("rate") {
                    true => field.replace(", ", "\n"),
                    false => field.clone(),
                });
                let lines = lines.collect::<Vec<_>>().join("\n# a comment\n");
                let dotted = lines
                    .replace("\nburst", "\nlimits.a.burst")
                    .replace("comment\n", "comment\nlimits.a.");
                for text in [
                    format!("[limits.a]\n{lines}\n"),
                    format!("limits.a.{dotted}\n"),
                    format!("[limits]\na = {{ {} }}\n", braces.join(", ")),
                ] {
                    let text = text.replace('\n', newline);
                    let (before, after) = (limit(&text), promote(&text));
                    let promoted = limit(&after);
                    let candidate = before.candidate.as_ref().unwrap();
                    assert_eq!(promoted.figures, candidate.figures, "{text}\n{after}");
                    assert_eq!(promoted.candidate, None, "{text}\n{after}");
                    assert_eq!(promoted.key, before.key, "{text}\n{after}");
                    if newline == "\r\n" {
                        assert_eq!(after.matches('\n').count(), after.matches("\r\n").count());
                    }
                }
            }
        }
    }
}

//! Login in a browser on this machine: the authorization code grant with PKCE, to a loopback address (RFC 8252, RFC
//! 7636).

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dayfly_client::encoded;
use dayfly_protocol::error::{Code, Failure};
use sha2::{Digest, Sha256};

use super::{Provider, tell};

/// Time limit of a login.
const TIMEOUT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Limit for a connected browser to send its request.
const READ_LIMIT: Duration = Duration::from_secs(5);
const MAX_REQUEST_BYTES: u64 = 16 << 10;

/// Prints an address, and waits until the browser that opened it returns with a code.
pub fn id_token(provider: &Provider<'_>, address: &str) -> Result<String, Failure> {
    let system = |error: std::io::Error| {
        let text = format!("no browser could come back here: {error}; log in without --browser");
        Failure::new(Code::Internal, text)
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(system)?;
    listener.set_nonblocking(true).map_err(system)?;
    let back = format!(
        "http://127.0.0.1:{}/callback",
        listener.local_addr().map_err(system)?.port()
    );
    let (verifier, state, nonce) = (secret()?, secret()?, secret()?);
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&verifier));
    let client = provider.info.client_id.as_str();
    let scope = provider.scope();
    let asked = [
        ("response_type", "code"),
        ("client_id", client),
        ("redirect_uri", &back),
        ("scope", &scope),
        ("state", &state),
        ("nonce", &nonce),
        ("code_challenge", &challenge),
        ("code_challenge_method", "S256"),
    ];
    let asked: Vec<String> = asked
        .iter()
        .map(|(name, value)| format!("{name}={}", encoded(value)))
        .collect();
    let mark = if address.contains('?') { '&' } else { '?' };
    tell(&format!(
        "Open this address in a browser on this machine:\n\n  {address}{mark}{}\n",
        asked.join("&")
    ));
    let code = come_back(&listener, &state)?;
    let answer = provider.exchange(&[
        ("grant_type", "authorization_code"),
        ("code", &code),
        ("redirect_uri", &back),
        ("client_id", client),
        ("code_verifier", &verifier),
    ])?;
    match &answer.id_token {
        // The manager checks the provider's signature. Only this process can check that the token belongs to its
        // request.
        Some(token) if nonce_of(token).as_deref() == Some(nonce.as_str()) => Ok(token.clone()),
        Some(_) => Err(Failure::new(
            Code::ProtocolViolation,
            "the provider answered to somebody else's login; log in again",
        )),
        None => Err(provider.refused(&answer)),
    }
}

fn secret() -> Result<String, Failure> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(Code::Internal, format!("the system gives no random bytes: {error}")))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

fn nonce_of(id_token: &str) -> Option<String> {
    let claims = URL_SAFE_NO_PAD.decode(id_token.split('.').nth(1)?).ok()?;
    let claims: serde_json::Value = serde_json::from_slice(&claims).ok()?;
    claims.get("nonce")?.as_str().map(str::to_owned)
}

/// Returns the code from the browser, if its request has the expected state.
fn come_back(listener: &TcpListener, state: &str) -> Result<String, Failure> {
    let until = Instant::now() + TIMEOUT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                // Ignore other connections.
                if let Some(came) = serve(&stream, state) {
                    return came;
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(POLL_INTERVAL),
            Err(error) => {
                let text = format!("no browser can come back here: {error}; log in without --browser");
                return Err(Failure::new(Code::Internal, text));
            }
        }
        if Instant::now() > until {
            let text = format!("nobody logged in within {} s; log in again", TIMEOUT.as_secs());
            return Err(Failure::new(Code::TimedOut, text));
        }
    }
}

fn serve(stream: &TcpStream, state: &str) -> Option<Result<String, Failure>> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(READ_LIMIT)).ok()?;
    stream.set_write_timeout(Some(READ_LIMIT)).ok()?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX_REQUEST_BYTES))
        .read_line(&mut line)
        .ok()?;
    let query = line.strip_prefix("GET /callback?")?.split(' ').next()?;
    let value = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(found, _)| *found == name).map(|(_, value)| plain(value))
    };
    if value("state")? != state {
        return None;
    }
    let (text, came) = match (value("code"), value("error")) {
        (Some(code), _) => ("You are logged in. This page can be closed.", Ok(code)),
        (None, why) => {
            let why = value("error_description").or(why).unwrap_or_default();
            let text = format!("the provider does not let you in: {why:.300}; log in again");
            ("Nobody was logged in.", Err(Failure::new(Code::Unauthorized, text)))
        }
    };
    let mut stream = stream;
    let length = text.len();
    // Errors do not matter: the page is only for people.
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    );
    Some(came)
}

/// Decodes a text of `encoded`.
fn plain(escaped: &str) -> String {
    let bytes = escaped.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        let byte = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match byte {
            Some(byte) => {
                plain.push(byte);
                at += 3;
            }
            None => {
                plain.push(if bytes[at] == b'+' { b' ' } else { bytes[at] });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_round_trips() {
        let text = "http://127.0.0.1:8/a b&c=d/ü%";
        assert_eq!(plain(&encoded(text)), text);
        assert_eq!(plain("a+b%2"), "a b%2");
    }

    #[test]
    fn code_is_accepted_only_with_the_state() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let ask = |query: &str| {
            let mut far = TcpStream::connect(address).unwrap();
            write!(far, "GET {query} HTTP/1.1\r\n\r\n").unwrap();
            serve(&listener.accept().unwrap().0, "right")
        };
        assert!(ask("/favicon.ico").is_none());
        assert!(ask("/callback?code=evil&state=wrong").is_none());
        assert_eq!(ask("/callback?code=a%2Fb&state=right"), Some(Ok("a/b".into())));
        let refused = ask("/callback?error=access_denied&state=right").unwrap().unwrap_err();
        assert!(refused.message.contains("access_denied"), "{refused}");
    }
}

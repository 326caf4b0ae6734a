//! Tests against real servers on this machine, with a scripted resolver.

mod addresses;
mod answers;
mod encryption;
pub(crate) mod server;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use a2abus_models::a2e_workflow::operation::Method;
use a2abus_models::a2e_workflow::target::Target;
use futures_util::future::BoxFuture;

use super::{Client, ClientOptions, Resolve};
use crate::environment::{HttpRequest, Reach};

/// Returns the scripted answers in turn, repeats the last one, and counts the lookups.
pub(crate) struct ScriptedResolver {
    answers: Mutex<VecDeque<Vec<IpAddr>>>,
    lookups: Mutex<Vec<String>>,
}

impl ScriptedResolver {
    pub(crate) fn new(answers: &[&[&str]]) -> Arc<Self> {
        let parse = |text: &&str| text.parse().unwrap();
        let answers = answers.iter().map(|each| each.iter().map(parse).collect());
        Arc::new(Self {
            answers: Mutex::new(answers.collect()),
            lookups: Mutex::default(),
        })
    }

    fn lookups(&self) -> Vec<String> {
        self.lookups.lock().unwrap().clone()
    }
}

impl Resolve for ScriptedResolver {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        self.lookups.lock().unwrap().push(host.to_owned());
        let mut answers = self.answers.lock().unwrap();
        let answer = answers.pop_front().unwrap();
        if answers.is_empty() {
            answers.push_back(answer.clone());
        }
        Box::pin(async move { Ok(answer) })
    }
}

/// A client with these names and trusted certificates.
pub(crate) fn client(names: &Arc<ScriptedResolver>, root_certificates: Vec<Vec<u8>>) -> Client {
    let resolver: Arc<dyn Resolve> = Arc::<ScriptedResolver>::clone(names);
    Client::new(&ClientOptions {
        root_certificates,
        resolver: Some(resolver),
        ..ClientOptions::default()
    })
    .unwrap()
}

/// A client for which every name is this machine.
fn local_client() -> Client {
    client(&ScriptedResolver::new(&[&["127.0.0.1"]]), Vec::new())
}

/// A GET that may reach any address.
fn get(url: &str) -> HttpRequest {
    HttpRequest {
        method: Method::Get,
        target: Target::parse(url).unwrap(),
        headers: Vec::new(),
        body: None,
        timeout: Duration::from_secs(30),
        max_response_bytes: 10 << 20,
        reach: Reach::Registered,
    }
}

/// The same, limited to global addresses.
fn get_global(url: &str) -> HttpRequest {
    HttpRequest {
        reach: Reach::Global,
        ..get(url)
    }
}

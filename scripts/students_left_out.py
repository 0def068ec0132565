"""A student without the models of seven publishers, judged by composed steps of theirs.

    for each in test cat syn synB; do python scripts/students_rows.py $each; done
    python scripts/students_left_out.py --name delta02 --delta 0.02
"""
import torch,numpy as np,time,sys,math
torch.set_num_threads(1)
from pinn.coefficients.coefficient_network import CoefficientNetwork, NetworkSettings, log_huber
from pinn.coefficients.trained_network import fit_scale
from pinn.training.teacher import FEATURE_GROUPS
import argparse
ap=argparse.ArgumentParser()
for n,d in (('epochs',24),('batch',64),('lr',.01),('delta',.05),('parts',1.0),('hidden',128),('depth',2),('bound',4.0),('seed',0),('syn',24000),('wd',0.0),('ema',0.0),('catrep',1),('pct',0.1),('nbatch',96),('eps',1e-8),('b2',.999)): ap.add_argument('--'+n,type=type(d),default=d)
ap.add_argument('--name',default='base'); ap.add_argument('--all',action='store_true'); ap.add_argument('--synfile',default='syn')
a=ap.parse_args()
L=lambda n: torch.load(f'build/students_{n}.pt',weights_only=False)
syn,cat,test=L(a.synfile),L('cat'),L('test')
HELD=('openai','MiniMaxAI','mistralai','google','zai-org','nvidia','ibm','01-ai')
org=lambda m: m.split('/')[0]
held=np.array([org(m) in HELD for m in cat['model']]); theld=np.array([org(m) in HELD for m in test['model']])
if a.all: held[:]=False
def pick(x,m): return {k:(v[torch.tensor(m)] if torch.is_tensor(v) else v) for k,v in x.items()}
cat=pick(cat,~held)
n=a.syn
parts=[{k:(v[:n] if torch.is_tensor(v) else v) for k,v in syn.items()}]+[cat]*a.catrep
rows={k:torch.cat([p[k] for p in parts]) for k in ('free','rates','f','s')}
del syn
torch.manual_seed(a.seed)
net=CoefficientNetwork(NetworkSettings(hidden=a.hidden,depth=a.depth,beta_bound=a.bound,corrected=True),fit_scale(rows['free'].numpy(),rows['rates'].numpy()))
net.requires_grad_(True); net.alpha_base.requires_grad_(False)
G=torch.tensor(FEATURE_GROUPS,dtype=torch.float32)
N=len(rows['f']); steps=a.epochs*math.ceil(N/a.batch)
ps=[p for p in net.parameters() if p.requires_grad]
opt=torch.optim.AdamW(ps,lr=a.lr,weight_decay=a.wd,eps=a.eps,betas=(.9,a.b2)) if a.wd else torch.optim.Adam(ps,lr=a.lr,eps=a.eps,betas=(.9,a.b2))
sch=torch.optim.lr_scheduler.OneCycleLR(opt,a.lr,total_steps=steps,pct_start=a.pct)
def err(p,s):
    m=s.expand_as(p); return log_huber(p,m,torch.ones(()),a.delta)/s.numel()
t=time.process_time()
for e in range(a.epochs):
    g=torch.Generator().manual_seed(a.seed*100003+e)
    for ix in torch.randperm(N,generator=g).split(a.batch):
        opt.zero_grad(set_to_none=True)
        f,s=rows['f'][ix],rows['s'][ix]
        if a.nbatch<96:
            o=int(torch.randint(0,96,(1,),generator=g)); j=(torch.arange(a.nbatch)+o)%96
            f,s=f[:,j],s[:,j]
        beta,_=net(rows['free'][ix],rows['rates'][ix])
        p=torch.einsum('mnf,mf,fg->mng',f,beta.float(),G)
        w=s.sum(-1,keepdim=True); inp=p+(w-s).clamp(min=0)
        loss=err(p.sum(-1,keepdim=True),w)+a.parts*err(inp,w)
        loss.backward(); opt.step(); sch.step()
net=net.double().eval()
with torch.no_grad():
    beta,_=net(test['free'],test['rates'])
    p=torch.einsum('mnf,mf->mn',test['f'].double(),beta)
    r=(p/test['s'].double().sum(-1)).numpy()-1
E=np.abs(r)*100
def q(m): x=E[m].ravel(); return f'{np.median(x):.2f}/{x.mean():.2f}/{np.quantile(x,.9):.2f}'
models=np.array(test['model'])
per=[np.median(E[models==m]) for m in sorted(set(models[theld]))]
short={m:m.split('/')[1][:14] for m in set(models[theld])}
print(a.name,'| held',q(theld),'mean of models',round(float(np.mean(per)),2),'| taught',q(~theld),'| cpu',round(time.process_time()-t),'|',' '.join(f"{o}:{np.median(E[[org(m)==o for m in models]]):.2f}" for o in HELD),flush=True)
